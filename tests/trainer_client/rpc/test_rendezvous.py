"""Tests what a member says of a rendezvous that it waits for."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from ps_wire.v1.operations_pb2 import RendezvousRequest
from trainer_client.rpc.rendezvous import Arrival
from trainer_client.rpc.waiting import Deadline

FOR_OTHERS = r"for up to (59|60) s more for members that have not joined, and without a time limit for others"


@pytest.mark.parametrize(
    ("patience", "seconds", "says"),
    [
        (60.0, 0.0, FOR_OTHERS),
        (60.0, 7200.0, r"for up to 7(199|200) s more"),
        (1e-9, 0.0, "without a time limit"),  # those that have not joined are not waited for any more
    ],
)
def test_it_says_how_long_it_waits_for_whom(patience: float, seconds: float, says: str) -> None:
    agent: Any = SimpleNamespace(patience=patience, directory=SimpleNamespace(address="127.0.0.1:1"))
    assert re.fullmatch(says, str(Arrival(agent, "shutdown", RendezvousRequest(), None, Deadline(seconds))))
