"""What torch's fixtures give to a test, for processes of this project."""

from __future__ import annotations

import unittest
from typing import Any, NamedTuple

from torch.testing._internal.common_utils import TestCase

from ps_service import by_value
from tests.torch_suite.catalogue import FAULTY
from tests.torch_suite.delays import DEFAULTS, delayed
from trainer_client.rpc import TensorPipeRpcBackendOptions


class Place(NamedTuple):
    """Where the processes of a test meet.

    Attributes:
        port: A free port of the loopback.
        file: A file that is empty at first.
    """

    port: int
    file: str


class Fixture:
    """Stands before a class of the suite in the order of bases. Its attributes have torch's names."""

    rank: int
    file_name: str
    place: Place

    @property
    def init_method(self) -> str:
        return self.file_init_method

    @property
    def file_init_method(self) -> str:
        return f"file://{self.file_name}"

    @property
    def rpc_backend(self) -> Any:
        return None

    @property
    def rpc_backend_options(self) -> TensorPipeRpcBackendOptions:
        return TensorPipeRpcBackendOptions(init_method=self.init_method)

    def setup_fault_injection(self, faulty_messages: Any, messages_to_delay: Any) -> None:
        """Delays messages as a test wants it. None is dropped: what is lost on the way is sent again here."""
        if faulty_messages:
            raise unittest.SkipTest(FAULTY)
        if type(self).__name__.startswith("Faulty"):
            delayed(DEFAULTS if messages_to_delay is None else messages_to_delay).start()

    def get_shutdown_error_regex(self) -> str:
        return ".*"

    def get_timeout_error_regex(self) -> str:
        return "RPC ran for more than"


def case(cls: type, name: str, rank: int, place: Place) -> TestCase:
    """A test of a class of the suite, for one of its processes.

    Args:
        cls: The class.
        name: The name of the test.
        rank: The number of the process.
        place: Where it meets the others.
    """
    kind: Any = type(cls.__name__, (Fixture, cls, TestCase), {})

    def make(state: tuple[str, int, list[Any]]) -> TestCase:
        made: TestCase = kind(state[0])
        made.__dict__.update(rank=state[1], place=Place(*state[2]), file_name=state[2][1])
        return made

    # A test may send one of its methods, and is sent with it.
    by_value(
        encode=lambda test: (test._testMethodName, test.rank, [*test.place]), decode=make, name=f"a {cls.__name__}"
    )(kind)
    return make((name, rank, [*place]))
