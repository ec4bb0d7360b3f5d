"""Tests of which trainers are said to be slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ps_service.monitoring.slow_trainers import SlowTrainers
from ps_service.monitoring.watched_owner import WatchedOwner
from ps_wire.v1.operations_pb2 import OptimizerStatus, SessionInfo, StatusReply


def owner(name: str, rates: Mapping[str, float], waiting_for: Sequence[str] = ()) -> WatchedOwner:
    made = WatchedOwner(name, "")
    made.state = "serving"
    trainers = [SessionInfo(id=id, steps=9, steps_per_second=rate, connected=True) for id, rate in rates.items()]
    made.status = StatusReply(trainers=trainers, optimizers=[OptimizerStatus(waiting_for=waiting_for)])
    return made


def why(owners: Sequence[WatchedOwner], looks: int = 10) -> dict[str, str]:
    slow = SlowTrainers()
    for _ in range(looks):
        slow.look(owners)
    return slow.why


def test_a_trainer_far_below_the_usual_rate_is_slow() -> None:
    rates = {"aaaaaaaa": 10.0, "bbbbbbbb": 9.0, "cccccccc": 4.0, "dddddddd": 0.0}
    assert why([owner("ps0", rates)]) == {"cccccccc": "44 % of the usual rate"}
    # What counts is its rate on the owner where it steps most often.
    assert why([owner("ps0", rates), owner("ps1", {"cccccccc": 9.0})]) == {}
    assert why([owner("ps0", {"aaaaaaaa": 1.0})]) == {}


def test_a_trainer_that_rounds_wait_for_is_slow_after_some_looks() -> None:
    owners = [owner("ps0", {"aaaaaaaa": 5.0, "bbbbbbbb": 5.0}, ["bbbbbbbb (10.0.0.1:5)"])]
    assert why(owners, looks=3) == {}
    assert why(owners) == {"bbbbbbbb": "rounds wait for it"}


def test_nobody_is_slow_where_rounds_wait_for_all() -> None:
    assert why([owner("ps0", {"aaaaaaaa": 5.0, "bbbbbbbb": 5.0}, ["aaaaaaaa (a)", "bbbbbbbb (b)"])]) == {}


def test_a_trainer_that_is_away_or_an_owner_that_does_not_answer_is_left_out() -> None:
    here = owner("ps0", {"aaaaaaaa": 10.0, "bbbbbbbb": 9.0, "cccccccc": 4.0})
    assert here.status is not None
    here.status.trainers[2].connected = False
    assert why([here]) == {}
    here.status.trainers[2].connected = True
    here.state = "lost"
    assert why([here]) == {}
