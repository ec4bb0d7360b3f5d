"""One optimizer made of several: those of tables, and one over parameters of modules and of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime.threads import BLOCKING
from trainer_client.contexts.closing import Stepping
from trainer_client.contexts.stepped import Stepped
from trainer_client.pending import Pending, after

if TYPE_CHECKING:
    from trainer_client.contexts.context import Context
    from trainer_client.optimizers.optimizer import DistributedOptimizer
    from trainer_client.tables.table import Table


class OptimizerWithTables(Stepping):
    """Steps tables and parameters with the gradients of one context. Made by `Client.optimizer`.

    Each table keeps its own optimizer, with its own options and its own policy.

    Attributes:
        parameters: The optimizer of the parameters; None if there are only tables.
        tables: The optimizers of the tables, by name.
    """

    has_local_part = False
    is_joinable = False

    def __init__(
        self, loop: asyncio.AbstractEventLoop, parameters: DistributedOptimizer | None, tables: Mapping[str, Any]
    ) -> None:
        self._loop = loop
        self.parameters = parameters
        self.tables: dict[str, DistributedOptimizer] = dict(tables)
        self.parts = [part for each in self._all for part in each.parts]

    @property
    def _all(self) -> list[DistributedOptimizer]:
        return [*([] if self.parameters is None else [self.parameters]), *self.tables.values()]

    def step(self, context: Context) -> Pending[Stepped]:
        """Applies the gradients of a context: to all tables and parameters, unless an owner refuses them.

        Every owner checks the gradients first. If one refuses them, nothing is changed on any owner or here. Then all
        of them step at once; each owner applies all of an optimizer's part or none of it.

        Returns:
            The versions, as `DistributedOptimizer.step`; those of a table under "owner/table".

        Raises:
            NonFiniteGradientError, InvalidArgumentError, TooLargeError: An owner refuses the gradients.
            PsError: An owner failed. Others may have applied their parts.
        """
        return Pending.run(self._loop, after(self._loop, list(context.unfinished), self._step(context)))

    async def _step(self, context: Context) -> Stepped:
        everything = self._all
        await asyncio.gather(*(BLOCKING.run(each.check, context) for each in everything))
        stepped = await asyncio.gather(*(each.step_checked(context) for each in everything), return_exceptions=True)
        return self._merged(stepped)

    def apply(self, context: Context) -> Stepped:
        """Like `step`, in this thread, which must not be that of the client's event loop."""
        return self.step(context).wait()

    async def step_local_part(self, context: Context) -> None:
        """Has been done by `step`."""

    def apply_local_part(self, context: Context) -> None:
        """Has been done by `step`."""

    def _merged(self, stepped: Sequence[Stepped | BaseException]) -> Stepped:
        for each in stepped:
            if isinstance(each, BaseException):
                raise each
        names = [*([] if self.parameters is None else [""]), *self.tables]
        versions: dict[str, int] = {}
        for name, each in zip(names, stepped, strict=True):
            assert isinstance(each, Stepped)
            versions |= {f"{owner}/{name}" if name else owner: version for owner, version in each.items()}
        return Stepped(versions)

    def set_options(self, group: int | None = None, **options: Any) -> Pending[None]:
        """Changes options such as `lr` of the parameters' optimizer; `tables[name].set_options()` does for a table.

        Raises:
            InvalidArgumentError: There are only tables, or there is no such group or option.
        """
        if self.parameters is None:
            raise InvalidArgumentError("this optimizer has tables only: use set_options() of each in `tables`")
        return self.parameters.set_options(group, **options)

    def __repr__(self) -> str:
        tables = ", ".join(self.tables)
        return f"<OptimizerWithTables {tables}{f' and {self.parameters!r}' if self.parameters is not None else ''}>"


async def together(
    loop: asyncio.AbstractEventLoop, tables: Sequence[Table], parameters: Awaitable[DistributedOptimizer] | None
) -> OptimizerWithTables:
    """An optimizer of tables, and of parameters whose optimizer is being made."""
    own = None if parameters is None else await parameters
    return OptimizerWithTables(loop, own, {each.name: each.optimizer for each in tables})
