"""Tests that the list of ended contexts is always right, and short."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import Any

from trainer_client.graph.current import Openings


class Opened(SimpleNamespace):
    """A context, as far as it matters here."""


def opened(openings: Openings) -> Any:
    context = Opened(id=SimpleNamespace(number=openings.number()))
    openings.opened(context)
    return context


def end(openings: Openings, context: Any) -> tuple[int, list[int]]:
    openings.remove(context)
    return openings.ended_with(context)


def test_contexts_are_numbered_from_one() -> None:
    openings = Openings()
    assert [openings.number() for _ in range(3)] == [1, 2, 3]


def test_the_end_of_one_names_those_that_are_open() -> None:
    openings = Openings()
    contexts = [opened(openings) for _ in range(4)]
    assert end(openings, contexts[1]) == (5, [1, 3, 4])
    assert end(openings, contexts[3]) == (5, [1, 3])
    late = opened(openings)
    assert end(openings, contexts[0]) == (6, [3, 5])
    assert end(openings, contexts[2]) == (6, [5])
    assert end(openings, late) == (6, [])


def test_a_context_without_references_is_not_open() -> None:
    openings = Openings()
    first, second = opened(openings), opened(openings)
    del first
    assert end(openings, second) == (3, [])


def test_a_context_that_is_being_made_is_open() -> None:
    # Another thread may end a pass between the number and the context.
    openings = Openings()
    first, number = opened(openings), openings.number()
    assert end(openings, first) == (3, [2])
    second = Opened(id=SimpleNamespace(number=number))
    openings.opened(second)
    assert end(openings, opened(openings)) == (4, [2])
    assert end(openings, second) == (4, [])


def test_a_context_that_is_freed_before_its_end_is_told_once() -> None:
    openings, dropped = Openings(), []
    contexts = [Opened(id=SimpleNamespace(number=openings.number())) for _ in range(3)]
    for each in contexts:
        openings.opened(each, partial(dropped.append, each.id.number))
    del each
    end(openings, contexts[0])
    contexts.pop(0)
    assert not dropped
    contexts.pop(0)
    assert dropped == [2] and end(openings, contexts[0]) == (4, [])


def test_long_lists_are_rare() -> None:
    openings, rng = Openings(), random.Random(0)
    held = [opened(openings) for _ in range(300)]
    listed = ended = 0
    for _ in range(3000):
        context = held.pop(rng.randrange(len(held)))
        before, but = end(openings, context)
        assert not before or set(but) == {each.id.number for each in held}
        listed, ended = listed + len(but), ended + 1
        held.append(opened(openings))
    assert 0 < listed <= 2 * ended
