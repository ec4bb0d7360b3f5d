"""TorchRec's `EmbeddingBagCollection` over tables: a `KeyedJaggedTensor` in, a `KeyedTensor` out.

Needs the package torchrec, which this project does not depend on, with the release of fbgemm-gpu-cpu or fbgemm-gpu that
belongs to the installed torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.options import Initialisation, Uniform
from ps_wire.tables.queries import Query, bags_query
from trainer_client.pending import DEFAULT, Pending
from trainer_client.tables.layers import unwrapped_table
from trainer_client.tables.look_ups import look_up

if TYPE_CHECKING:
    from trainer_client.tables.table import Table

try:
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
    from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor
except ImportError as error:
    raise ImportError(
        f"trainer_client.torchrec needs the package torchrec, and what that needs: {error}. Install it with the "
        "release of fbgemm-gpu-cpu that belongs to your torch"
    ) from error

__all__ = ["EmbeddingBagCollection", "options_of"]

_DTYPES: Final = {DataType.FP32: torch.float32, DataType.FP16: torch.float16, DataType.BF16: torch.bfloat16}
_MODES: Final = {PoolingType.SUM: "sum", PoolingType.MEAN: "mean"}


def options_of(config: EmbeddingBagConfig, init: Initialisation | None = None) -> dict[str, Any]:
    """The arguments of `Client.table` for a table of TorchRec: its name, dim, rows, dtype and first values.

        items = await ps.table(**options_of(config), optimizer=tc.tables.RowWiseAdagrad(lr=0.05))

    A virtual table of TorchRec (`use_virtual_table`) becomes one that takes any id.

    Args:
        config: The configuration.
        init: How rows begin; None for TorchRec's default, evenly between the bounds of the configuration.

    Raises:
        InvalidArgumentError: Rows of this data type are not offered, or the configuration has a function of its own for
            first values, and `init` is not given.
    """
    if config.data_type not in _DTYPES:
        raise InvalidArgumentError(f"rows of table {config.name!r} are FP32, FP16 or BF16, not {config.data_type}")
    if init is None:
        if getattr(config.init_fn, "func", None) is not torch.nn.init.uniform_:
            raise InvalidArgumentError(f"owners cannot run the init_fn of table {config.name!r}: give init=")
        init = Uniform(config.get_weight_init_min(), config.get_weight_init_max())
    return {
        "name": config.name,
        "dim": config.embedding_dim,
        "rows": None if config.use_virtual_table else config.num_embeddings,
        "dtype": _DTYPES[config.data_type],
        "init": init,
    }


class EmbeddingBagCollection(EmbeddingBagCollectionInterface):  # type: ignore[misc]  # torchrec may be missing
    """Pools rows of tables on owners, as TorchRec's class of this name pools rows of its own. Tested with torchrec 1.9.

        tables = [ps.table(**options_of(config), optimizer=tc.tables.SGD(lr=0.1)) for config in configs]
        model = DLRM(EmbeddingBagCollection(configs, tables), ...)

    All features of all tables are looked up with one request to each owner. The forward waits for the owners, so it
    runs in a plain thread, as with the blocking client; in an event loop `await collection.look_up(features)` does the
    same. The rows are no parameters of the module, nor part of its state: the optimizers of the tables step them.

    Args:
        configs: What TorchRec's class takes. A table without names of features has one of its own name.
        tables: A table of the name of each configuration, in any order.
        is_weighted: Whether features have weights, with which rows are multiplied; for tables that sum.

    Raises:
        InvalidArgumentError: A configuration has no table, or one of another width, a name is there twice, or its
            pooling is not offered.
    """

    def __init__(self, configs: Sequence[EmbeddingBagConfig], tables: Sequence[Any], is_weighted: bool = False) -> None:
        super().__init__()
        self._configs = list(configs)
        self._is_weighted = is_weighted
        by_name = {table.name: table for table in map(unwrapped_table, tables)}
        names = [config.name for config in self._configs]
        if not names or len(set(names)) < len(names):
            raise InvalidArgumentError(f"a collection is made of tables with different names, not of {names}")
        for config in self._configs:
            table = by_name.get(config.name)
            if table is None or table.dim != config.embedding_dim:
                there = "is missing" if table is None else f"has rows of {table.dim}"
                raise InvalidArgumentError(
                    f"the configuration of {config.name!r} has rows of {config.embedding_dim}, and its table {there}"
                )
            if config.pooling not in _MODES:
                raise InvalidArgumentError(f"the rows of a bag are pooled by SUM or MEAN, not {config.pooling}")
        features = [(config, name) for config in self._configs for name in config.feature_names or [config.name]]
        shared = Counter(name for _, name in features)
        self._features = [(by_name[config.name], _MODES[config.pooling], name) for config, name in features]
        # As TorchRec names them.
        self._names = [f"{name}@{config.name}" if shared[name] > 1 else name for config, name in features]
        self._widths = [config.embedding_dim for config, _ in features]

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """The pooled rows of all features; arguments, result and errors as for `look_up`.

        Raises:
            RuntimeError: This is the thread of the client's event loop.
        """
        return self.look_up(features).wait()

    def look_up(self, features: KeyedJaggedTensor, timeout: float | None = DEFAULT) -> Pending[KeyedTensor]:
        """The pooled rows of all features. Inside a context, and with grad enabled, this is recorded.

        Args:
            features: Ids of each feature, int64 or int32, with as many bags for one as for every other.
            timeout: Seconds this may take; None is no limit.

        Returns:
            float32 [bags, sum of the widths], on the CPU, by the names of features; a feature of several tables has
            the name `feature@table`.

        Raises:
            InvalidArgumentError: Ids do not fit a table, a feature is missing, or features have different numbers of
                bags. Nothing was sent.
            TooLargeError, StaleHandleError: As for `Table`.
        """
        loop = self._features[0][0]._loop
        return look_up(loop, self._queries(features), timeout, self._keyed)

    def _queries(self, features: KeyedJaggedTensor) -> list[Query[Table]]:
        if not isinstance(features, KeyedJaggedTensor):
            raise InvalidArgumentError(
                "a collection looks up the features of a KeyedJaggedTensor, KeyedJaggedTensor(names, ids, lengths=…), "
                f"and not a {type(features).__name__}"
            )
        if features.variable_stride_per_key() or features.inverse_indices_or_none() is not None:
            raise InvalidArgumentError("every feature has the same number of bags here, and no inverse indices")
        given = features.to_dict()
        if missing := {name for *_, name in self._features} - given.keys():
            raise InvalidArgumentError(f"the features {sorted(missing)} are missing, there are {sorted(given)}")
        queries = []
        for table, mode, name in self._features:
            jagged = given[name]
            weights = jagged.weights() if self._is_weighted else None
            queries.append(
                bags_query(table, jagged.values(), jagged.offsets(), mode, weights, include_last_offset=True)
            )
        return queries

    def _keyed(self, results: list[torch.Tensor]) -> KeyedTensor:
        return KeyedTensor(self._names, self._widths, torch.cat(results, dim=1))

    def is_weighted(self) -> bool:
        """Whether features have weights."""
        return self._is_weighted

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """The configurations."""
        return self._configs

    @property
    def device(self) -> torch.device:
        """Where results are: the CPU."""
        return torch.device("cpu")
