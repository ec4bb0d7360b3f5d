"""What torch's fixtures give to a test, for processes of this project."""

from __future__ import annotations

import unittest
from typing import Any, NamedTuple

from torch.testing._internal.common_utils import TestCase

from tests.torch_suite.catalogue import FAULTY
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
        return f"tcp://127.0.0.1:{self.place.port}"

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
        if faulty_messages is not None or messages_to_delay is not None:
            raise unittest.SkipTest(FAULTY)

    def get_shutdown_error_regex(self) -> str:
        return ".*"

    def get_timeout_error_regex(self) -> str:
        return ".*"


def case(cls: type, name: str, rank: int, place: Place) -> TestCase:
    """A test of a class of the suite, for one of its processes.

    Args:
        cls: The class.
        name: The name of the test.
        rank: The number of the process.
        place: Where it meets the others.
    """
    made: TestCase = type(cls.__name__, (Fixture, cls, TestCase), {})(name)
    made.__dict__.update(rank=rank, place=place, file_name=place.file)
    return made
