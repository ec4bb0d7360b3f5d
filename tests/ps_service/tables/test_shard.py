"""Tests of what one owner holds of a table, against torch and against a table on several owners."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import embedding_bag

from ps_service.tables import storage
from ps_service.tables.reservation import Reservation
from ps_service.tables.shard import Implementation, TableShard
from ps_wire.errors import InvalidArgumentError, TooLargeError
from ps_wire.tables.options import (
    FTRL,
    SGD,
    Adagrad,
    Constant,
    Initialisation,
    LazyAdam,
    Normal,
    PartialRowWiseAdam,
    RowGroup,
    RowOptimizer,
    RowWiseAdagrad,
    Uniform,
    Zeros,
)
from ps_wire.tables.routing import slots_of
from tests.ps_service.tables.conftest import IMPLEMENTATIONS, MakeShard, train

OPTIMIZERS = [
    SGD(0.1),
    SGD(0.1, 0.9),
    Adagrad(0.1),
    RowWiseAdagrad(0.1),
    LazyAdam(0.1),
    PartialRowWiseAdam(0.1),
    FTRL(0.1),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
BIG = 2**63 - 1

some_in_16_bits = pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        *((each, torch.float32) for each in OPTIMIZERS),
        (RowWiseAdagrad(0.1), torch.float16),
        (LazyAdam(0.1), torch.bfloat16),
    ],
    ids=lambda each: getattr(each, "kind", str(each)),
)


def _ids(*ids: int) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int64)


def _content(shard: TableShard) -> dict[str, list[object]]:
    blocks = list(shard.blocks())
    return {name: torch.cat([each[name] for each in blocks]).tolist() for name in blocks[0]} if blocks else {}


def test_a_row_begins_the_same_wherever_and_whenever_it_is_first_seen(make_shard: MakeShard) -> None:
    one, other = make_shard(6, SGD(), Normal(0.5), seed=3), make_shard(6, SGD(), Normal(0.5), seed=3)
    ids = _ids(5, -5, BIG, -BIG - 1, 0)
    assert torch.equal(one.look_up(ids)[[4, 0]], other.look_up(_ids(0, 5)))
    assert torch.equal(one.look_up(ids.flip(0)), other.look_up(ids, add=False).flip(0))
    assert other.size == 2
    assert not torch.equal(one.look_up(ids), make_shard(6, SGD(), Normal(0.5), seed=4).look_up(ids))


@pytest.mark.parametrize("init", [Normal(0.5), Uniform(-1, 2), Constant(3.0)], ids=lambda each: each.kind)
@pytest.mark.parametrize("dim", [1, 7, 16])
def test_a_row_begins_the_same_with_every_implementation(init: Initialisation, dim: int) -> None:
    ids = _ids(5, -5, BIG, -BIG - 1, 0)
    first, *others = [
        TableShard(dim, SGD(), init, seed=3, implementation=each).look_up(ids) for each in IMPLEMENTATIONS
    ]
    assert all(torch.equal(first, each) for each in others)


def test_initial_values_have_the_distributions_that_were_asked_for(make_shard: MakeShard) -> None:
    ids = torch.arange(-4_000, 4_000)
    normal = make_shard(33, SGD(), Normal(0.5)).look_up(ids).double()
    assert abs(normal.mean().item()) < 0.005
    assert normal.std().item() == pytest.approx(0.5, rel=0.01)
    assert (normal.abs() < 0.5).double().mean().item() == pytest.approx(0.6827, abs=0.005)
    assert abs(torch.corrcoef(normal.t()).fill_diagonal_(0)).max() < 0.06
    uniform = make_shard(33, SGD(), Uniform(-1, 3)).look_up(ids).double()
    assert (uniform.min().item(), uniform.max().item()) == (pytest.approx(-1, abs=1e-3), pytest.approx(3, abs=1e-3))
    assert uniform.mean().item() == pytest.approx(1, abs=0.02)
    assert (make_shard(3, SGD(), Zeros()).look_up(ids) == 0).all()
    assert (make_shard(3, SGD(), Constant(2.5)).look_up(ids) == 2.5).all()


def test_a_row_that_was_removed_begins_anew(make_shard: MakeShard) -> None:
    shard = make_shard(2, Adagrad(0.1, initial_accumulator=0.5), Normal())
    before = shard.look_up(_ids(1, 2))
    train(shard, _ids(1, 2), torch.ones(2, 2))
    assert shard.remove(_ids(2, 7)) == 1
    assert torch.equal(shard.look_up(_ids(2))[0], before[1])
    assert _content(shard)["state.sum"][1] == [0.5, 0.5]


def test_a_row_that_was_removed_keeps_nothing_for_the_next_id(make_shard: MakeShard) -> None:
    shard = make_shard(2, LazyAdam(), Normal())
    train(shard, _ids(1, 2), torch.ones(2, 2))
    shard.remove(_ids(2))
    shard.look_up(_ids(3))
    content = _content(shard)
    assert content["ids"] == [1, 3]
    assert [content[f"state.{name}"][1] for name in ("moment", "square", "steps")] == [[0, 0], [0, 0], [0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_bags_are_those_of_torch(dtype: torch.dtype, make_shard: MakeShard) -> None:
    torch.manual_seed(0)
    shard = make_shard(4, SGD(), Normal(1.0), dtype)
    ids, offsets = torch.randint(-20, 20, (50,)), _ids(0, 3, 3, 20, 49)
    rows = shard.look_up(torch.arange(-20, 20)).float()
    for weights in (None, torch.randn(50)):
        expected = embedding_bag(ids + 20, rows, offsets, mode="sum", per_sample_weights=weights)
        torch.testing.assert_close(shard.bag(ids, offsets, weights), expected)
        torch.testing.assert_close(shard.pooled_rows_of(ids, offsets, weights, False)[1], expected)
    other = make_shard(4, SGD(), Normal(1.0), dtype)
    other.look_up(torch.arange(-20, 0))
    torch.testing.assert_close(other.bag(ids, offsets, weights), expected)
    assert other.size == 20
    assert shard.bag(_ids(), _ids(0, 0)).tolist() == [[0.0] * 4] * 2
    assert shard.bag(_ids(), _ids()).shape == (0, 4)


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_bags_are_those_of_torch(weighted: bool, make_shard: MakeShard) -> None:
    torch.manual_seed(0)
    shard = make_shard(4, SGD(1.0), Normal(1.0))
    ids, offsets = torch.randint(-20, 20, (50,)), _ids(0, 3, 3, 20, 49)
    weights = torch.randn(50) if weighted else None
    rows = shard.look_up(torch.arange(-20, 20)).requires_grad_()
    gradients = torch.randn(5, 4)
    embedding_bag(ids + 20, rows, offsets, mode="sum", per_sample_weights=weights).backward(gradients)
    assert rows.grad is not None
    train(shard, ids, gradients, offsets, weights)
    torch.testing.assert_close(shard.look_up(torch.arange(-20, 20)), rows.detach() - rows.grad)


@some_in_16_bits
def test_a_table_has_the_same_bits_on_one_two_and_three_owners(
    optimizer: RowOptimizer, dtype: torch.dtype, make_shard: MakeShard
) -> None:
    torch.manual_seed(0)
    tables = [[make_shard(3, optimizer, Normal(1.0), dtype, seed=9) for _ in range(count)] for count in (1, 2, 3)]
    every = torch.randint(-BIG - 1, BIG, (60,))
    for _ in range(6):
        ids, gradients = every[torch.randint(0, 60, (40,))], torch.randn(40, 3)
        for shards in tables:
            for owner, shard in enumerate(shards):
                mine = slots_of(ids) % len(shards) == owner
                train(shard, ids[mine], gradients[mine])
    results = []
    for shards in tables:
        values = torch.empty(60, 3, dtype=dtype)
        for owner, shard in enumerate(shards):
            mine = slots_of(every) % len(shards) == owner
            values[mine] = shard.look_up(every[mine])
        results.append(values)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@some_in_16_bits
def test_a_state_goes_into_other_shards(optimizer: RowOptimizer, dtype: torch.dtype, make_shard: MakeShard) -> None:
    torch.manual_seed(0)
    shard = make_shard(3, optimizer, Normal(1.0), dtype)
    ids = torch.randint(-50, 50, (200,))
    train(shard, ids, torch.randn(200, 3))
    blocks = list(shard.blocks(13))
    assert max(len(block["ids"]) for block in blocks) == 13
    copies = [make_shard(3, optimizer, Normal(1.0), dtype) for _ in range(2)]
    for owner, copy in enumerate(copies):
        copy.look_up(_ids(1_000))
        copy.load({name: each[slots_of(block["ids"]) % 2 == owner] for name, each in block.items()} for block in blocks)
    assert sum(copy.size for copy in copies) == shard.size
    gradients = torch.randn(200, 3)
    train(shard, ids, gradients)
    for owner, copy in enumerate(copies):
        mine = slots_of(ids) % 2 == owner
        train(copy, ids[mine], gradients[mine])
        assert torch.equal(copy.look_up(ids[mine]), shard.look_up(ids[mine]))


def test_blocks_that_do_not_fit_are_refused(make_shard: MakeShard) -> None:
    shard = make_shard(2, Adagrad(), Zeros())
    shard.look_up(_ids(1, 2))
    (block,) = shard.blocks()
    for wrong in (
        *({}, {"ids": block["ids"]}, {**block, "more": block["ids"]}, {**block, "values": torch.zeros(2, 3)}),
        *({**block, "values": block["values"].half()}, {**block, "state.sum": block["state.sum"].double()}),
        *({**block, "ids": _ids(1, 1)}, {**block, "ids": torch.zeros(2)}),
    ):
        with pytest.raises(InvalidArgumentError):
            shard.load([wrong], clear=False)
    assert shard.size == 2


@pytest.mark.parametrize(
    "use",
    [
        lambda shard: shard.look_up(torch.zeros(3)),
        lambda shard: shard.look_up(torch.zeros(3, dtype=torch.int32)),
        lambda shard: shard.look_up(torch.zeros(3, 1, dtype=torch.int64)),
        lambda shard: shard.bag(_ids(1, 2), _ids(1)),
        lambda shard: shard.bag(_ids(1, 2), _ids()),
        lambda shard: shard.bag(_ids(1, 2), _ids(0, 2, 1)),
        lambda shard: shard.bag(_ids(1, 2), _ids(0, 3)),
        lambda shard: shard.bag(_ids(1, 2), torch.zeros(1)),
        lambda shard: shard.bag(_ids(1, 2), _ids(0), torch.ones(3)),
        lambda shard: shard.bag(_ids(1, 2), _ids(0), torch.ones(2, dtype=torch.int64)),
        lambda shard: shard.set_options(speed=1),
        lambda shard: shard.set_options(lr=-1),
        lambda shard: shard.set_options(momentum=0.5),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_change_nothing(
    use: Callable[[TableShard], object], make_shard: MakeShard
) -> None:
    shard = make_shard(3, SGD(), Normal())
    with pytest.raises(InvalidArgumentError):
        use(shard)
    assert (shard.size, shard.updates, shard.optimizer) == (0, 0, SGD())


def test_more_rows_than_the_limit_are_refused_and_change_nothing(make_shard: MakeShard) -> None:
    shard = make_shard(2, SGD(), Normal(), max_rows=3)
    shard.look_up(_ids(1, 2))
    before = _content(shard)
    for use in (
        lambda: shard.look_up(_ids(1, 3, 4)),
        lambda: shard.rows_of(_ids(1, 3, 4)),
        lambda: shard.pooled_rows_of(_ids(1, 3, 4), _ids(0), None, False),
    ):
        with pytest.raises(TooLargeError):
            use()
    assert _content(shard) == before
    assert shard.look_up(_ids(1, 3, 4), add=False).shape == (3, 2)


def test_a_table_of_fixed_size_has_no_other_ids(make_shard: MakeShard) -> None:
    shard = make_shard(2, SGD(), Normal(), rows=10)
    shard.look_up(torch.arange(10))
    for wrong in (_ids(0, 10), _ids(-1), _ids(BIG)):
        with pytest.raises(InvalidArgumentError, match="10 rows"):
            shard.look_up(wrong)
        with pytest.raises(InvalidArgumentError, match="10 rows"):
            shard.remove(wrong)
    assert shard.size == 10


@pytest.mark.parametrize(
    "make",
    [
        lambda: TableShard(0, SGD()),
        lambda: TableShard(4, SGD(), dtype=torch.float64),
        lambda: TableShard(4, SGD(), rows=0),
        lambda: TableShard(4, SGD(), max_rows=-1),
        lambda: TableShard(4, SGD(), groups=[RowGroup(0, 5), RowGroup(5, 9)]),
    ],
)
def test_a_table_with_arguments_that_do_not_fit_is_not_made(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


def test_a_table_without_reserved_memory_has_the_same_rows(
    monkeypatch: pytest.MonkeyPatch, make_shard: MakeShard
) -> None:
    torch.manual_seed(0)
    shards = [make_shard(3, Adagrad(0.1), Normal(1.0))]
    monkeypatch.setattr(Reservation, "make", lambda count, dtype: None)
    monkeypatch.setattr(storage, "BLOCK_ROWS", 16)
    shards.append(make_shard(3, Adagrad(0.1), Normal(1.0)))
    for _ in range(5):
        ids, gradients = torch.randint(-200, 200, (100,)), torch.randn(100, 3)
        for shard in shards:
            train(shard, ids, gradients)
    mine, other = _content(shards[0]), _content(shards[1])
    assert mine.pop("ids") == other.pop("ids")
    for name in mine:
        torch.testing.assert_close(torch.tensor(mine[name]), torch.tensor(other[name]))
    shards[1].clear()
    assert (shards[1].size, len(shards[1].look_up(_ids(3)))) == (0, 1)


def test_memory_is_that_of_the_rows(make_shard: MakeShard) -> None:
    shard = make_shard(16, RowWiseAdagrad(), Normal())
    shard.look_up(torch.arange(50_000))
    assert 64 + 4 + 26 <= shard.memory / 50_000 <= 64 + 4 + 32
    shard.clear()
    assert shard.memory < 100_000


_step = st.tuples(st.lists(st.tuples(st.integers(-6, 6), st.integers(-3, 3)), max_size=8), st.booleans())


@given(st.sampled_from(IMPLEMENTATIONS), st.lists(_step, max_size=6), st.lists(st.integers(-6, 6), max_size=10))
def test_a_table_does_what_a_tensor_does(
    implementation: Implementation, steps: list[tuple[list[tuple[int, int]], bool]], asked: list[int]
) -> None:
    shard = TableShard(2, SGD(0.5), Constant(1.0), implementation=implementation)
    tensor = torch.ones(13, 2)
    for pairs, as_bags in steps:
        ids = _ids(*(each for each, _ in pairs))
        gradients = torch.tensor([[float(each), -float(each)] for _, each in pairs]).view(-1, 2)
        if as_bags:
            train(shard, ids, gradients, torch.arange(len(ids)))
        else:
            train(shard, ids, gradients)
        tensor.index_add_(0, ids + 6, gradients, alpha=-0.5)
    assert torch.equal(shard.look_up(_ids(*asked)), tensor[_ids(*asked) + 6])
