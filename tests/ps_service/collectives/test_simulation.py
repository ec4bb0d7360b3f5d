"""Runs members through random collectives with deaths, cancellations and waits at every point."""

from __future__ import annotations

import random
from concurrent.futures import Future

import pytest

from ps_service.collectives.communicator import Exchange
from ps_wire.collectives import Signature
from tests.cases import case
from tests.ps_service.collectives.world import World, sends

FAULTS = ("kill", "break", "goodbye", "leave", "fail", "cancel", "late", "mismatch", None)


def planned(rng: random.Random, size: int) -> Signature:
    kind = rng.choice(["barrier", "gather", "broadcast", "scatter", "all_gather"])
    return Signature(kind, rng.randrange(size) if kind in ("gather", "broadcast", "scatter") else 0)


def expected(signature: Signature, rank: int, size: int) -> list[str]:
    """What a member gets."""
    kind, root, _ = signature
    if kind == "all_gather" or (kind == "gather" and rank == root):
        return [f"{other}.0" for other in range(size) if other != rank]
    if kind == "broadcast" and rank != root:
        return [f"{root}.0"]
    if kind == "scatter" and rank != root:
        return [f"{root}.{[other for other in range(size) if other != root].index(rank)}"]
    return []


@pytest.mark.parametrize("fault", FAULTS)
def test_no_member_waits_for_ever_or_gets_what_is_not_for_it(fault: str | None) -> None:
    for seed in range(FAULTS.index(fault), 400, len(FAULTS)):
        with case(seed):
            simulate(fault, seed)


def simulate(fault: str | None, seed: int) -> None:
    rng = random.Random(seed)
    world, size = World(), rng.randint(1, 4)
    trainers = world.all_join(size)
    plan = [planned(rng, size) for _ in range(rng.randint(1, 5))]
    culprit, moment = rng.randrange(size), rng.randint(0, size * len(plan))
    called = [0] * size
    waits: list[tuple[int, int, Future[Exchange]]] = []
    alive, struck = set(range(size)), False

    def call(rank: int) -> None:
        number = called[rank] = called[rank] + 1
        signature = plan[number - 1]
        if struck and fault == "mismatch" and rank == culprit:
            signature = Signature("gather" if signature.kind != "gather" else "barrier", 0)
        waits.append(
            (rank, number, world.call(trainers[rank], number, signature, *sends(signature, rank, size), seconds=30.0))
        )

    def may_call(rank: int) -> bool:
        if rank not in alive or called[rank] == len(plan) or (struck and fault == "late" and rank == culprit):
            return False
        # Members have up to two calls in flight.
        return sum(of == rank and not future.done() for of, _, future in waits) < 2

    for turn in range(10_000):
        if turn == moment:
            struck, trainer = True, trainers[culprit]
            if fault == "kill":
                world.end_session(trainer)
            elif fault == "break":
                world.break_connection(trainer)
            elif fault == "goodbye":
                world.end_session(trainer, lost=False)
            elif fault in ("leave", "fail"):
                world.communicators.leave(trainer, 1, "" if fault == "leave" else "ValueError")
            elif fault == "cancel":
                for number in range(1, len(plan) + 1):
                    world.communicators.cancel(trainer, 1, number)
            if fault in ("kill", "break", "goodbye", "leave", "fail"):
                alive.discard(culprit)
        able = [rank for rank in range(size) if may_call(rank)]
        if able:
            call(rng.choice(able))
        elif turn > moment:
            break
        world.wait(rng.choice([0.0, 0.0, 0.01]))
    began = world.now
    world.wait(2.0 if fault != "late" else 31.0)
    errors = set()
    for rank, number, future in waits:
        if rank == culprit and fault == "break":
            continue
        assert future.done(), (rank, number, fault)
        error = future.exception()
        if error is None:
            found = [piece.value.text for piece in future.result().pieces]
            assert found == expected(plan[number - 1], rank, size)
        elif rank in alive:
            errors.add(str(error))
            assert (
                fault in ("mismatch", "leave")
                or rank == culprit
                or f"rank {culprit} (trainer t{culprit})" in str(error)
            )
    # All have heard the same, and those that were not struck nothing.
    assert len(errors) <= 1, errors
    if fault is None or (size == 1 and fault not in ("mismatch", "leave", "fail", "kill", "goodbye", "break")):
        assert not errors and (fault == "late" or all(each == len(plan) for each in called))
    # A collective is complete for all of its members or for none.
    for number in range(1, len(plan) + 1):
        outcomes = {future.exception() is None for rank, of, future in waits if of == number and future.done()}
        assert len(outcomes) <= 1, (number, fault)
    assert world.communicators.nbytes == 0 and world.now >= began
    for rank, trainer in enumerate(trainers):
        world.communicators.leave(trainer, 1, "")
        del rank
    if culprit not in alive and fault == "break":
        world.end_session(trainers[culprit])
    assert world.is_idle
