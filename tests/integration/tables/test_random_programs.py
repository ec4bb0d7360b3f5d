"""Random look-ups and steps over one, two and three owners, against a table in plain torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trainer_client as tc
from ps_service.server import Server
from tests.integration.tables.programs import DIM, STEPS, Bag, Local, Rows, coefficients, ids_of

names = itertools.count()


@pytest.fixture(scope="module")
def clients(servers_beside: list[Server]) -> Iterator[list[Any]]:
    """Blocking clients of one, two and three owners; the order of their addresses differs."""
    addresses = [each.address for each in servers_beside]
    with ExitStack() as stack:
        yield [
            stack.enter_context(tc.connect(addresses[0])),
            stack.enter_context(tc.connect(addresses[1], addresses[0])),
            stack.enter_context(tc.connect(addresses[2], addresses[0], addresses[1])),
        ]


def run(ps: Any, name: str, steps: list[list[Rows | Bag]], optimizer: Any, at_once: bool) -> tuple[list[Any], Any]:
    """Runs a program on a new table; returns the results of its look-ups, and the rows before and after."""
    table = ps.table(name, DIM, optimizer, init=tc.tables.Normal(1.0))
    ids = torch.tensor(ids_of(steps), dtype=torch.int64)
    first, results = table(ids), []
    for number, step in enumerate(steps):
        with ps.context() as ctx:
            found = []
            if at_once:
                tables = [ps.table(name) for _ in step]
                wanted = dict(zip(tables, (each.arguments() for each in step), strict=True))
                found = list(ps.look_up(wanted).values())
            else:
                for each in step:
                    given = each.arguments()
                    found.append(table(given) if isinstance(each, Rows) else table.bag(**given))
            losses = [(each * coefficients(each, 10 * number + n)).sum() for n, each in enumerate(found)]
            ctx.backward(sum(losses), step=table.optimizer.unwrapped)
        results.append([each.detach() for each in found])
    return results, (ids, first, table(ids))


@settings(max_examples=6)
@given(STEPS, st.sampled_from([tc.tables.SGD(lr=0.5), tc.tables.RowWiseAdagrad(lr=0.5)]), st.booleans())
def test_a_table_is_that_of_plain_torch_however_it_is_split(
    clients: list[Any], steps: list[list[Rows | Bag]], optimizer: Any, at_once: bool
) -> None:
    tried = []
    for ps in clients:
        name = f"table{next(names)}"
        results, (ids, first, last) = run(ps, name, steps, optimizer, at_once)
        local = Local(dict(zip(ids.tolist(), first, strict=True)), optimizer)
        for number, (step, found) in enumerate(zip(steps, results, strict=True)):
            for own, other in zip(local.step(step, 10 * number), found, strict=True):
                torch.testing.assert_close(own, other)
        if len(ids):
            torch.testing.assert_close(last, torch.stack([local.rows[id] for id in ids.tolist()]))
        assert ps.table(name).size() == len(ids)
        tried.append(last)
        ps.table(name).delete()
    assert torch.equal(tried[0], tried[1]) and torch.equal(tried[0], tried[2])
