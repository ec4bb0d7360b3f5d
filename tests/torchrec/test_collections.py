"""Tests of TorchRec's interface over tables, beside TorchRec's own modules. They need the package torchrec."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import trainer_client as tc

with warnings.catch_warnings():
    # Of its optional parts, and of its own dependencies.
    warnings.simplefilter("ignore")
    torchrec = pytest.importorskip("torchrec")
    from torchrec.models.dlrm import DLRM
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
    from torchrec.modules.embedding_modules import EmbeddingBagCollection as Local
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from trainer_client.torchrec import EmbeddingBagCollection, options_of

ITEMS = EmbeddingBagConfig(name="goods", embedding_dim=3, num_embeddings=20, feature_names=["clicked", "bought"])
USERS = EmbeddingBagConfig(
    name="users", embedding_dim=5, num_embeddings=10, feature_names=["user", "bought"], pooling=PoolingType.MEAN
)
SUMMED = EmbeddingBagConfig(name="summed", embedding_dim=3, num_embeddings=20)


def features(step: int = 0, weighted: bool = False) -> KeyedJaggedTensor:
    """Two bags of each feature, one of them empty, and a feature that no table has."""
    return KeyedJaggedTensor(
        keys=["user", "clicked", "other", "bought", "summed"],
        values=(torch.tensor([1, 2, 5, 5, 9, 3, 3, 99, 4, 7, 0, 1, 2]) + step),
        lengths=torch.tensor([1, 1, 0, 4, 1, 1, 2, 0, 2, 1]),
        weights=torch.arange(13) * 0.5 - 1 if weighted else None,
    )


def twin(configs: list[EmbeddingBagConfig], rows: list[torch.Tensor], weighted: bool = False) -> Local:
    """TorchRec's own collection with these rows."""
    local = Local(configs, is_weighted=weighted)
    with torch.no_grad():
        for config, own in zip(configs, rows, strict=True):
            local.embedding_bags[config.name].weight.copy_(own)
    return local


@pytest.mark.parametrize("weighted", [False, True])
async def test_it_pools_and_trains_as_the_collection_of_torchrec(pair: tc.Client, weighted: bool) -> None:
    configs = [SUMMED] if weighted else [ITEMS, USERS]
    tables = [await pair.table(**options_of(each), optimizer=tc.tables.SGD(lr=0.5)) for each in configs]
    local = twin(configs, [await table(torch.arange(table.rows)) for table in tables], weighted)
    collection = EmbeddingBagCollection(configs, tables[::-1], weighted)
    assert (collection.is_weighted(), collection.embedding_bag_configs()) == (weighted, configs)
    assert not list(collection.parameters()) and not collection.state_dict()
    opt = torch.optim.SGD(local.parameters(), lr=0.5)
    for step in range(3):
        given = features(step, weighted)
        expected = local(given)
        async with pair.context() as ctx:
            found = await collection.look_up(given)
            assert found.keys() == expected.keys() and found.length_per_key() == expected.length_per_key()
            torch.testing.assert_close(found.values(), expected.values())
            await ctx.backward(found.values().square().sum(), step=[each.optimizer for each in tables])
        opt.zero_grad()
        expected.values().square().sum().backward()
        opt.step()


def test_a_dlrm_of_torchrec_keeps_its_forward(owner_process_address: str) -> None:
    configs = [
        EmbeddingBagConfig(name=name, embedding_dim=4, num_embeddings=20, feature_names=[name]) for name in ("a", "b")
    ]
    sparse = KeyedJaggedTensor(["b", "a"], torch.tensor([1, 2, 3, 3, 7]), lengths=torch.tensor([2, 0, 1, 2]))
    dense = torch.randn(2, 6, generator=torch.Generator().manual_seed(1))

    def model(collection: Any) -> Any:
        torch.manual_seed(0)
        return DLRM(collection, 6, dense_arch_layer_sizes=[8, 4], over_arch_layer_sizes=[8, 1])

    with tc.connect(owner_process_address) as ps:
        tables = [ps.table(**options_of(each), optimizer=tc.tables.SGD(lr=0.1)) for each in configs]
        local = model(twin(configs, [table(torch.arange(20)) for table in tables]))
        remote = model(EmbeddingBagCollection(configs, tables))
        opt = ps.optimizer(torch.optim.SGD, [*tables, *remote.parameters()], lr=0.1)
        own = torch.optim.SGD(local.parameters(), lr=0.1)
        losses = []
        for _ in range(4):
            with ps.context() as ctx:
                loss = remote(dense, sparse).square().sum()
                ctx.backward(loss, step=opt)
            own.zero_grad()
            expected = local(dense, sparse).square().sum()
            expected.backward()
            own.step()
            torch.testing.assert_close(loss.detach(), expected.detach())
            losses.append(loss.item())
        assert losses[-1] < losses[0]


def test_tables_of_torchrec_become_tables() -> None:
    half = EmbeddingBagConfig(
        **{"name": "a", "embedding_dim": 2, "num_embeddings": 9, "data_type": DataType.BF16},
        **{"weight_init_min": -1.0, "weight_init_max": 2.0},
    )
    expected = {"name": "a", "dim": 2, "rows": 9, "dtype": torch.bfloat16, "init": tc.tables.Uniform(-1.0, 2.0)}
    assert options_of(half) == expected
    virtual = EmbeddingBagConfig(name="a", embedding_dim=2, num_embeddings=4, use_virtual_table=True)
    assert options_of(virtual)["rows"] is None and options_of(virtual)["init"] == tc.tables.Uniform(-0.5, 0.5)
    own = EmbeddingBagConfig(name="a", embedding_dim=2, num_embeddings=4, init_fn=torch.nn.init.zeros_)
    assert options_of(own, tc.tables.Zeros())["init"] == tc.tables.Zeros()
    with pytest.raises(tc.errors.InvalidArgumentError, match="give init="):
        options_of(own)
    with pytest.raises(tc.errors.InvalidArgumentError, match="INT8"):
        options_of(EmbeddingBagConfig(name="a", embedding_dim=2, num_embeddings=4, data_type=DataType.INT8))


async def test_what_does_not_fit_is_refused(ps: tc.Client) -> None:
    items = await ps.table(**options_of(ITEMS))
    collection = EmbeddingBagCollection([ITEMS], [items])
    with pytest.raises(tc.errors.InvalidArgumentError, match="'bought', 'clicked'"):
        collection.look_up(KeyedJaggedTensor(["x"], torch.tensor([1]), lengths=torch.tensor([1])))
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"of a KeyedJaggedTensor, .* not a Tensor"):
        collection.look_up(torch.tensor([1]))
    with pytest.raises(tc.errors.InvalidArgumentError, match="rows 0 to 19"):
        collection.look_up(features(step=11))
    uneven = KeyedJaggedTensor(
        *(["clicked", "bought"], torch.tensor([1, 2, 3])),
        **{"lengths": torch.tensor([1, 1, 1]), "stride_per_key_per_rank": [[1], [2]]},
    )
    with pytest.raises(tc.errors.InvalidArgumentError, match="same number of bags"):
        collection.look_up(uneven)
    for configs, tables, message in [
        ([ITEMS], [], "is missing"),
        ([EmbeddingBagConfig(name="goods", embedding_dim=4, num_embeddings=20)], [items], "has rows of 3"),
        ([ITEMS, ITEMS], [items], "different names"),
        ([], [], "different names"),
        ([EmbeddingBagConfig(3, 3, "goods", pooling=PoolingType.NONE)], [items], "SUM or MEAN"),
    ]:
        with pytest.raises(tc.errors.InvalidArgumentError, match=message):
            EmbeddingBagCollection(configs, tables)
    with pytest.raises(tc.errors.InvalidArgumentError, match="needs a table"):
        EmbeddingBagCollection([ITEMS], ["items"])
