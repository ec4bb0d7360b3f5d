"""Follows the parameters of a module: all of them once, and from then on those that change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ps_wire.codec.values import Decoder
from ps_wire.errors import ClosedError, InvalidArgumentError
from ps_wire.numbers import check_seconds
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import READS_CONSISTENT, PullReply, PullRequest
from trainer_client.pending import Pending

if TYPE_CHECKING:
    import torch

    from ps_wire.codec.payload import PayloadReader
    from ps_wire.v1.frames_pb2 import Reply
    from ps_wire.v1.values_pb2 import Handle
    from trainer_client.session.session import Session


@dataclass(frozen=True, slots=True)
class ModuleChange:
    """Parameters of a module that have changed, all as between the same two steps.

    Attributes:
        version: What the module is once this is applied, as plain values; `changes(since=version)` goes on from there.
        parameters: Those that have changed, by name.
        buffers: All buffers by name, if one of them has changed; otherwise empty.
    """

    version: Mapping[str, Any]
    parameters: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]


class FollowingModule:
    """Gives the changes of a module, from a version on. Arguments are those of `RemoteModule.changes`."""

    def __init__(self, session: Session, target: Handle, names: Sequence[str], since: Any, every: float) -> None:
        check_seconds("every", every)
        self._session = session
        self._target = target
        self._names = names
        self._marks, self._buffers_mark = _marks(since)
        self._every = every

    async def changes(self) -> AsyncGenerator[ModuleChange, None]:
        """The changes, without an end."""
        while True:
            if (change := await self.round()) is not None:
                yield change
            await asyncio.sleep(self._every)

    def in_thread(self) -> Iterator[ModuleChange]:
        """The same for a plain thread, which waits for each."""
        loop, changes = self._session.loop, self.changes()
        try:
            while True:
                yield Pending.run(loop, changes.__anext__()).wait()
        finally:
            with suppress(ClosedError):  # with its client, it has ended, too
                Pending.run(loop, changes.aclose()).wait()

    async def round(self) -> ModuleChange | None:
        """What has changed by now; None for nothing."""
        # Marks of other parameters, also of an earlier process of the owner, name nothing there: all come.
        marks = self._marks if len(self._marks) == len(self._names) else []
        request = PullRequest(marks=marks, buffers_mark=self._buffers_mark, reads=READS_CONSISTENT)
        request.target.CopyFrom(self._target)
        pulled, parameters, buffers = await self._session.submit(Request(pull=request), None, _read)
        if not parameters and buffers is None:
            return None
        now = marks or [0] * len(self._names)
        for position, mark in zip(pulled.positions, pulled.marks, strict=True):
            now[position] = mark
        self._marks = now
        if buffers is not None:
            self._buffers_mark = pulled.buffers_mark
        version = {"marks": list(now), "buffers": self._buffers_mark.hex()}
        changed = {self._names[position]: each for position, each in zip(pulled.positions, parameters, strict=True)}
        return ModuleChange(version, changed, buffers or {})


def _read(reply: Reply, payload: PayloadReader) -> tuple[PullReply, list[torch.Tensor], dict[str, torch.Tensor] | None]:
    decoder, pulled = Decoder(payload), reply.pull
    parameters = decoder.decode(pulled.parameters) if pulled.HasField("parameters") else []
    buffers = decoder.decode(pulled.buffers) if pulled.HasField("buffers") else None
    return pulled, parameters, buffers


def _marks(since: Any) -> tuple[list[int], bytes]:
    if since is None:
        return [], b""
    try:
        return [int(each) for each in since["marks"]], bytes.fromhex(since["buffers"])
    except (KeyError, TypeError, ValueError):
        raise InvalidArgumentError(f"since= is the version of a change of a module, not {since!r}") from None
