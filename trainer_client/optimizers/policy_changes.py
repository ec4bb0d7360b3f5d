"""Optimizers whose policy, which says when gradients count, may be changed while trainers train."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ps_wire import policies
from ps_wire.codec.values import Encoder
from ps_wire.v1.values_pb2 import Value
from trainer_client.optimizers.results import all_of
from trainer_client.optimizers.rounds import begun
from trainer_client.pending import Pending

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from ps_wire.policies import Policy
    from trainer_client.optimizers.parts import RemoteOptimizer
    from trainer_client.optimizers.rounds import Rounds


class PolicyChanges:
    """What an optimizer over owners says of its policy, with the rounds over these that this may ask for."""

    _rounds: Rounds | None
    _only: RemoteOptimizer | None
    _loop: asyncio.AbstractEventLoop
    _no_local_part: Callable[[], None]
    remotes: dict[str, RemoteOptimizer]
    policy: Policy | None
    everywhere: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]

    @property
    def has_rounds(self) -> bool:
        """Whether it has rounds over several owners, as far as this client knows."""
        return self._rounds is not None

    async def _begin_rounds(self, policy: Value) -> Rounds:
        self._rounds = await begun(self.remotes, policy, self._loop)
        return self._rounds

    def set_policy(self, policy: Policy) -> Pending[None]:
        """Changes when gradients count, for all trainers and while they train.

        An open round of `Quorum` without `of` ends with the gradients that it has, whose trainers went on. Gradients
        whose trainers wait for a round move into the rounds of the new policy, as if they were offered then.

        Args:
            policy: `Async`, `Sync`, `BoundedStaleness` or `Quorum`.

        Raises:
            InvalidArgumentError: This is no policy, or the optimizer has parameters in this process.
            NameConflictError: It has parameters on several owners, and one of them has a policy for its part alone.
        """
        policies.check(policy)
        return Pending.run(self._loop, self.everywhere(partial(self._set_policy, policy)))

    def leave(self) -> Pending[None]:
        """Says that this trainer steps no more, so that no round waits for it. Its next step joins again.

        A trainer whose client is closed, or which is lost, has left.

        Raises:
            InvalidArgumentError: The optimizer has parameters in this process.
        """
        return Pending.run(self._loop, self._leave())

    async def _set_policy(self, policy: Policy) -> None:
        self._no_local_part()
        plain = Value()
        Encoder(None).encode_into(plain, policies.to_plain(policy))
        if self._only is not None:
            await self._only.set_policy(plain)
        else:
            rounds = self._rounds or await self._begin_rounds(plain)
            await rounds.change(plain)
        self.policy = policy

    async def _leave(self) -> None:
        self._no_local_part()
        if self._rounds is not None:
            await self._rounds.leave()
        else:
            # If there are rounds over several owners by now, the first of them tells the others with the next step.
            await all_of({name: part.leave() for name, part in self.remotes.items()})
