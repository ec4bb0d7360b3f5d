"""Tests that the backups of rows give the values of earlier versions, held to copies of the whole table."""

from __future__ import annotations

import gc

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_service.parameters.state import ParameterState
from ps_service.tables.backups import RowBackups
from ps_service.tables.hosted_table import HostedTable
from ps_service.tables.row_gradients import rows_gradient
from ps_service.tables.stand_in import summed_rows
from ps_service.training.parameter_history import ParameterHistory
from ps_wire.tables import options

COUNT = 6
IDS = torch.arange(COUNT) * 7 - 11


def table(dtype: torch.dtype = torch.float32) -> HostedTable:
    made = HostedTable(
        name="items",
        dim=2,
        rows=None,
        dtype=dtype,
        init=options.to_plain(options.Normal(1.0)),
        optimizer=options.to_plain(options.SGD(lr=0.5)),
        seed=1,
        max_rows=64,
        groups=[],
        owners=["ps0"],
    )
    made.shard.rows_of(IDS)
    return made


def update(items: HostedTable, numbers: list[int]) -> None:
    rows = torch.tensor(sorted(numbers), dtype=torch.int64)
    items.apply(rows_gradient(rows, torch.randn(len(rows), 2)), {"lr": 0.5})


everything = torch.arange(COUNT)


@given(
    steps=st.lists(st.lists(st.sets(st.integers(0, COUNT - 1)), max_size=2), min_size=1, max_size=24),
    wanted=st.sets(st.integers(0, COUNT - 1), min_size=1),
)
@settings(max_examples=25)
def test_rows_have_moved_by_what_whole_copies_say(steps: list[list[set[int]]], wanted: set[int]) -> None:
    items, state = table(), ParameterState()
    history, copies = ParameterHistory([items.parameter], [state], 0.25), {}
    history.reach(0)
    copies[0] = items.shard.read(everything)
    for version, parts in enumerate(steps, start=1):
        for numbers in parts:
            update(items, list(numbers))
        state.steps = 2 * version
        state.tell()
        history.reach(version)
        copies[version] = items.shard.read(everything)
    rows = torch.tensor(sorted(wanted))
    gradient = rows_gradient(rows, torch.ones(len(rows), 2))
    for version, then in copies.items():
        ((found,)) = history.compensated([gradient], version)
        ((by_steps,)) = history.compensated([gradient], 0, [2 * version])
        assert found is not None and by_steps is not None
        assert torch.equal(summed_rows(found)[1], summed_rows(by_steps)[1])
        # Of 17 versions, as of other parameters; a gradient of an older one is left as it is.
        is_kept = version >= len(steps) - 16
        moved = (items.shard.read(everything) - then)[rows] if is_kept else torch.zeros(len(rows), 2)
        torch.testing.assert_close(summed_rows(found)[1], 1 + 0.25 * moved, rtol=0, atol=0)


def test_a_row_that_began_anew_has_not_moved() -> None:
    items = table()
    backups = RowBackups(items)
    update(items, [0, 1])
    backups.end(1)
    items.shard.remove(IDS[:1])
    other, _ = items.shard.rows_of(torch.tensor([1234]))
    assert items.shard.population.generations.numbers(other).tolist() == [0]  # the number is used again
    moved = backups.moved(torch.cat([other, torch.tensor([1])]), 0)
    assert not moved[0].any() and moved[1].any()


def test_old_steps_are_forgotten_and_so_is_who_asked() -> None:
    items, state = table(), ParameterState()
    history = ParameterHistory([items.parameter], [state], 0.25)
    for version in range(40):
        update(items, [version % COUNT])
        state.steps = version
        state.tell()
    (backups,) = (each() for each in items.backups)
    assert backups is not None and len(backups._steps) == 16
    del backups, history
    gc.collect()
    RowBackups(items)
    assert [each() for each in items.backups] == [None] == [each() for each in state.followers]
    update(items, [0])


def test_gradients_that_are_added_have_different_rows_in_ascending_order() -> None:
    first = rows_gradient(torch.tensor([1, 4]), torch.ones(2, 2))
    for second, expected in (([4, 9], [1, 4, 9]), ([0, 2], [0, 1, 2, 4]), ([7, 8], [1, 4, 7, 8])):
        numbers, values = summed_rows(first + rows_gradient(torch.tensor(second), torch.full((2, 2), 2.0)))
        assert numbers.tolist() == expected
        assert values[:, 0].tolist() == [(each in (1, 4)) + 2.0 * (each in second) for each in expected]
