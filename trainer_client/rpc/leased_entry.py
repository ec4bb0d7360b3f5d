"""The entry of this process in a directory that several owners keep: a lease on its name, which is renewed."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ps_service.durability.place import Place
from ps_service.execution.periodic import Periodic
from ps_service.group import claim_messages
from ps_service.group.formation import MemberEntry
from ps_service.group.lease import Lease
from ps_service.group.lineage import Lineage
from ps_service.group.merged import MergedEntries
from ps_service.group.registers import Entry, Outcome, Registers
from ps_wire.errors import PsError, UnavailableError
from ps_wire.runtime import tasks
from ps_wire.runtime.noop import noop
from ps_wire.runtime.threads import BLOCKING
from ps_wire.v1.operations_pb2 import Member
from trainer_client.rpc.waiting import Deadline, told
from trainer_client.transport.channels import keepers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.group.keepers import KeeperAddress
    from ps_service.group.registers import Claim
    from ps_service.server import Server
    from ps_wire.v1.directory_pb2 import ClaimReply
    from trainer_client.session.settings import Settings

_log = logging.getLogger(__name__)

BEAT_SECONDS: Final = 0.5
"""Longest time between two claims at one keeper."""

_ASK_SECONDS: Final = 1.0
"""Seconds that a keeper may take for an answer."""

_LEAVE_SECONDS: Final = 0.5
"""Seconds for which an owner that ends waits until keepers have heard of it."""

_LOOK_SECONDS: Final = 0.25
"""Seconds between looks at the lease, and at the data directory of a keeper."""


class LeasedEntry:
    """The owner may act for its name while a majority of the keepers has granted it (`group/registers.py`): its
    `Standing` is told until when. The directory of this process has the members that the keepers tell.
    """

    def __init__(self, server: Server, address: str, known: Sequence[KeeperAddress], settings: Settings) -> None:
        self._server = server
        self._engine = server.engine
        self._fence = server.engine.fence
        self._address = address
        self._addresses = {each.name: each.address for each in known}
        self._keepers = tuple(self._addresses)
        self._merged = MergedEntries()
        self._place = Place()
        # What could not be written last, of which the log says so once.
        self._unkept = Place()
        self._versions: dict[str, str] = {}
        self._mirrored: list[Entry] = []
        self._ask = keepers(settings.tls, settings.token)
        self._asking: list[asyncio.Task[None]] = []
        self._stopping: asyncio.Task[None] | None = None
        self._looks = Periodic(_LOOK_SECONDS, self._look, "a look at the lease")
        # Apart from the looks, which must not wait for a slow disk.
        self._places = Periodic(_LOOK_SECONDS, self._keep_place, "keeping where the keepers are")
        self._lease: Lease | None = None
        self._joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fence.lease(noop)

    @property
    def member(self) -> Member:
        """As the directory describes it."""
        entry = self._claimed.entry
        return Member(name=entry.name, address=entry.address, id=entry.id or 0, is_owner=True)

    async def begin(self, seconds: float) -> None:
        """Gets the lease. Raises `UnavailableError` if there is no majority in time, `NameConflictError` if another
        owner has the name, `ReplacedError` if a later start of the state has, and `InvalidArgumentError` if the keepers
        were told other keepers."""
        engine, fence = self._engine, self._fence
        folder = engine.data_dir
        place = self._place = Place() if folder is None else await BLOCKING.run(Place.read, folder)
        here = {address: name for name, address in self._addresses.items()}.get(self._address, "")
        keeper = place.keeper if place.keeper in self._keepers else here
        number = place.number if not keeper else self._keepers.index(keeper)
        lineage = Lineage(engine.incarnations.current, engine.incarnations.earlier)
        self._lease = Lease(Entry(engine.name, self._address, number, place.epoch + 1, lineage, keeper), self._keepers)
        if keeper:
            engine.membership.registers = Registers(keeper, self._keepers, fence.clock(), folder is not None)
        fence.lease(self._cut_off)
        self._server.tell_lease(True)
        self._looks.begin()
        self._asking = [
            asyncio.get_running_loop().create_task(self._claim_again_and_again(each), context=contextvars.Context())
            for each in self._keepers
        ]
        async with told(self._what, Deadline(seconds)):
            try:
                async with asyncio.timeout(seconds):
                    await self._joined
            except TimeoutError:
                raise UnavailableError(f"{self._what()}, and has none after {seconds:g} s") from None
        entry = self._claimed.entry
        self._place = self._place._replace(number=entry.id, keeper=keeper, epoch=entry.epoch)
        if folder is not None:
            await BLOCKING.run(self._place.write, folder)
            self._places.begin()
        _log.info(
            "%s has joined the group as number %d, with its directory at %s",
            *(entry.name, entry.id, ", ".join(self._keepers)),
        )

    async def end(self) -> None:
        """Gives the name back. The owner must have stopped."""
        await self._looks.end()
        await self._places.end()
        for task in self._asking:
            await tasks.end(task)
        if self._stopping is not None:
            await asyncio.wait([self._stopping])
        elif self._lease is not None:
            await self._give_back()
        await self._ask.close()

    @property
    def _claimed(self) -> Lease:
        assert self._lease is not None, "it has begun"
        return self._lease

    async def _claim_again_and_again(self, keeper: str) -> None:
        lease, fence = self._claimed, self._fence
        while True:
            claim, sent = lease.claim(), fence.clock()
            try:
                reply = await self._answer(keeper, claim)
                if reply is None:
                    lease.unanswered(keeper)
                else:
                    self._hear(keeper, claim, sent, reply)
            except Exception:
                _log.exception("a claim at the keeper %s failed; it will be repeated", keeper)
            # So that owners which have claimed the same number at once do not go on to do so.
            pause = BEAT_SECONDS if lease.entry == claim.entry else BEAT_SECONDS / 10
            await asyncio.sleep(random.uniform(0.5, 1.0) * pause)

    async def _answer(self, keeper: str, claim: Claim) -> ClaimReply | None:
        """The reply of a keeper; None if none comes in time."""
        version, registers = self._versions.get(keeper, ""), self._engine.membership.registers
        if registers is not None and registers.keeper == keeper:
            now = self._fence.clock()
            return claim_messages.reply(registers.answer(claim, now), "", registers.entries(now))
        # It is where it was found last, by this start of the owner or by one before, or where it was at first.
        first = self._addresses[keeper]
        before = self._place.keepers.get(keeper, first)
        for address in dict.fromkeys((self._merged.addresses.get(keeper, before), before, first)):
            with suppress(UnavailableError):
                request = claim_messages.request(claim, version)
                reply: ClaimReply = await self._ask.ask(address, "Claim", request, _ASK_SECONDS)
                return reply
        return None

    def _hear(self, keeper: str, claim: Claim, sent: float, reply: ClaimReply) -> None:
        answer, now = claim_messages.answer_of(reply), self._fence.clock()
        if answer.outcome is Outcome.OTHER_KEEPERS:
            answer = answer._replace(keeper=keeper)  # whatever it is called there
        elif answer.keeper != keeper:
            return  # another one is at this address by now
        else:
            is_new = reply.version != self._versions.get(keeper) or not reply.version
            self._versions[keeper] = reply.version
            self._merged.hear(keeper, now, claim_messages.entries_of(reply) if is_new else None)
        lease, was_doubted = self._claimed, self._fence.is_doubted
        lease.heard(claim, sent, answer)
        self._fence.extend(lease.until)
        self._server.tell_lease(self._fence.is_doubted)
        self._mirror(now)
        why = lease.verdict(now)
        if not self._joined.done():
            if why is not None:
                self._joined.set_exception(why)
            elif not self._fence.is_doubted:
                self._joined.set_result(None)
        elif why is not None:
            self._stop(why)
        elif was_doubted and not self._fence.is_doubted:
            _log.info("%s has its name again, and goes on", self._engine.name)

    def _mirror(self, now: float) -> None:
        """Tells the directory of this process who the members are."""
        entries, own = self._merged.entries(now), self._claimed.entry
        if not self._fence.is_doubted:
            entries = sorted([own, *(each for each in entries if each.name != own.name)], key=lambda each: each.id or 0)
        if entries != self._mirrored:
            self._mirrored = entries
            members = (MemberEntry(each.name, each.address, each.id or 0, b"", True, each.lineage) for each in entries)
            self._engine.directory.mirror(members)

    async def _look(self) -> None:
        fence, membership = self._fence, self._engine.membership
        fence.is_sure()  # notices the end of the lease although no request comes
        self._mirror(fence.clock())
        if membership.registers is not None and self._engine.data_dir is not None:
            began = fence.clock()
            if await BLOCKING.run(membership.has_data_dir):
                membership.registers.confirm(began)

    async def _keep_place(self) -> None:
        """Writes to the data directory where the keepers are, and the epoch, if they have changed."""
        folder = self._engine.data_dir
        place = self._place._replace(keepers=self._merged.addresses, epoch=self._claimed.entry.epoch)
        if folder is not None and place != self._place and await BLOCKING.run(self._engine.membership.has_data_dir):
            try:
                await BLOCKING.run(place.write, folder)
            except OSError as error:
                if self._unkept != place:
                    _log.warning(
                        "where the keepers are cannot be kept in %s: %s; it will be tried again", folder, error
                    )
                self._unkept = place
                return
            self._place = place

    def _cut_off(self) -> None:
        """The lease has run out."""
        self._server.servicer.session_handlers.end_streams()
        self._server.tell_lease(True)
        _log.warning(
            "%s takes and answers nothing until a majority of the keepers of its directory has granted its name (%s)",
            *(self._engine.name, self._missing),
        )

    def _stop(self, why: PsError) -> None:
        """Another owner has the name."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._replaced(str(why)))

    async def _replaced(self, why: str) -> None:
        await self._server.replaced(why)
        for task in self._asking:
            await tasks.end(task)
        await self._give_back()

    async def _give_back(self) -> None:
        """Tells all keepers that this owner does not act for its name any more."""
        claim = self._claimed.claim(leaves=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await asyncio.gather(*(self._answer(each, claim) for each in self._keepers))

    def _what(self) -> str:
        return (
            f"{self._engine.name!r} joins its group, and waits for a majority of the keepers of its directory "
            f"({self._missing})"
        )

    @property
    def _missing(self) -> str:
        missing = self._claimed.missing(self._fence.clock()).items()
        return ", ".join(f"{keeper}: {_ANSWERS[outcome]}" for keeper, outcome in missing if outcome in _ANSWERS)


_ANSWERS: Final = {
    None: "no answer",
    Outcome.HELD: "another start of the owner has the name",
    Outcome.STALE: "another start of the owner has had the name",
    Outcome.NUMBER: "another owner has the number",
    Outcome.NOT_READY: "it has started a moment ago",
    Outcome.OTHER_KEEPERS: "it was told other keepers",
}
"""What keepers that have not granted a name have answered, in words."""
