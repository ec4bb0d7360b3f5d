"""Runs the targets in turns, beside an innocent trainer, and watches the owner."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ps_service.requests.operations import OPERATIONS
from tests.forking.process import Forking
from tests.fuzz.beside import Innocent, undisturbed
from tests.fuzz.cases import Case, Finding, save
from tests.fuzz.owner import FuzzedOwner, Held
from tests.fuzz.recording import Recording, record
from tests.fuzz.targets.files import FILES, trained
from tests.fuzz.targets.requests import Requests
from tests.fuzz.targets.streams import Streams
from tests.fuzz.targets.target import Reader
from tests.fuzz.targets.unary import Unary
from tests.fuzz.targets.wire import Compression, Frames, Options, Records, Values

Sender = Streams | Unary

_SLICE: Final = 1.0
"""Seconds of a target before the next one has its turn."""

_KEPT: Final = 40
"""Cases that are saved if the owner ends: it may be an earlier one that has done it."""

# malloc, torch and gRPC come to hold some 160 MB more in the first 50,000 messages, and no more after that.
_MORE_BYTES: Final = 256 << 20
_MORE_DESCRIPTORS: Final = 8
_MORE_THREADS: Final = 8
"""By how much an owner may hold more at the end than after its first round."""

_CALM: Final = 20.0
"""Seconds within which it has to hold no more: leases end in two, free memory is given back after five."""

_INNOCENT: Final = "innocent "

_EXPECTED: Final = {"sessions": 4, "objects_hosted": 12}
"""What an owner holds with the innocent trainer: its three sessions with four objects each, and that of the owner
itself, which is in its own directory."""


class Fuzz:
    """One run. `messages` and `seconds` count by target."""

    def __init__(self, seed: int, found: Path, only: Sequence[str] = ()) -> None:
        self.seed = seed
        self.messages: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.findings: list[str] = []
        self._found = found
        self._only = only
        self._numbers: Counter[str] = Counter()
        self._latest: deque[Case] = deque(maxlen=_KEPT)
        self._temporary = tempfile.TemporaryDirectory(prefix="fuzz-")
        self.folder = Path(self._temporary.name)
        self._forking = Forking()
        self._runner = asyncio.Runner()
        self._first: Held | None = None
        self._starts = 0

    def begin(self) -> None:
        """Records a trainer, and starts the owner and the innocent trainer."""
        recording = self._runner.run(record())
        self._runner.run(trained(self.folder / "trained"))
        self._make_targets(recording)
        self._start()

    def _make_targets(self, recording: Recording) -> None:
        made: list[Reader] = [each(recording) for each in (Frames, Records, Values, Options, Compression, Requests)]
        made += [each(self.folder / "trained") for each in FILES]
        self.readers = [each for each in made if not self._only or each.name in self._only]
        senders: list[Sender] = [Streams(each, recording) for each in ("grpc", "direct", "memory")]
        senders.append(Unary(recording, sorted(OPERATIONS)))
        self.senders = [each for each in senders if not self._only or each.name in self._only]

    def _start(self) -> None:
        self._starts += 1
        self.owner = FuzzedOwner(self._forking, self.folder, f"owner{self._starts}")
        self.innocent = Innocent(self._forking, self.owner.address)

    def round(self, until: Callable[[], bool]) -> None:
        """A turn of each target."""
        for reader in self.readers:
            if not until():
                self._turn(reader.name, lambda case, reader=reader: self._read(reader, case), reader.make)  # type: ignore[misc]
        for sender in self.senders:
            if until():
                return
            self._turn(sender.name, lambda case, sender=sender: self._send(sender, case), sender.make)  # type: ignore[misc]
            self._watched()
        if self._first is None and self.senders:
            self._calm()
            self._first = self.owner.held()

    def _turn(self, name: str, do: Callable[[Case], int], make: Callable[[random.Random], Case]) -> None:
        began = time.monotonic()
        while time.monotonic() < began + _SLICE:
            number = self._numbers[name] = self._numbers[name] + 1
            seed = f"{self.seed}-{name}-{number}"
            case = make(random.Random(seed))
            case.notes["seed"] = seed
            self._latest.append(case)
            try:
                self.messages[name] += do(case)
            except Finding as finding:
                self._tell(finding, [case])
        self.seconds[name] += time.monotonic() - began

    def _read(self, reader: Reader, case: Case) -> int:
        reader.read(case)
        return len(case.parts)

    def _send(self, sender: Sender, case: Case) -> int:
        """Returns how many of its messages were sent: a line may end before."""
        before = sender.counts["messages"]
        self._runner.run(self._beside(sender, case))
        return sender.counts["messages"] - before

    async def _beside(self, sender: Sender, case: Case) -> None:
        sending = asyncio.create_task(sender.send(case, self.owner.address))
        while not sending.done():
            self.innocent.go()
            await asyncio.wait([sending], timeout=0.1)
        self.innocent.look(0.0)
        await sending

    def _watched(self) -> None:
        """Looks at the owner after a turn; one that has ended is started again."""
        try:
            self.owner.check()
            self.innocent.go()
            self.owner.clean(_INNOCENT)
        except Finding as finding:
            self._tell(finding, list(self._latest))
            if "has ended" in str(finding) or "does not answer" in str(finding):
                self.innocent.close()
                self.owner.close()
                self._start()
                self._first = None

    def _tell(self, finding: Finding, cases: list[Case]) -> None:
        what = str(finding)
        first = what.splitlines()[0]
        is_new = first not in self.findings
        self.findings.append(first)
        if not is_new:
            return
        path = save(self._found / f"{cases[-1].notes.get('seed', 'end')}-{len(self.findings)}.json", cases, what)
        print(
            f"FOUND in {cases[-1].target}, seed {cases[-1].notes.get('seed')}: {what[:4000]}\nsaved in {path}",
            flush=True,
        )

    def _calm(self) -> dict[str, int]:
        """Waits until what the fuzzer has left is gone; returns what is not."""
        until = time.monotonic() + _CALM
        self.owner.clean(_INNOCENT)
        while True:
            left = self._left(self.owner.held())
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.5)

    def _left(self, held: Held) -> dict[str, int]:
        """What an owner holds that it should not when only the innocent trainer is there."""
        left = {name: count for name, count in held.counted.items() if count > _EXPECTED.get(name, 0)}
        if self._first is not None:
            first = self._first
            for name, more, now, before in (
                ("bytes", _MORE_BYTES, held.own, first.own),
                ("descriptors", _MORE_DESCRIPTORS, held.descriptors, first.descriptors),
                ("threads", _MORE_THREADS, held.threads, first.threads),
            ):
                if now > before + more:
                    left[f"{name} ({before} before)"] = now
        return left

    def end(self) -> None:
        """Compares what the owner holds, and the losses of the innocent trainer."""
        try:
            self.innocent.finish()
            if left := self._calm():
                raise Finding(f"the owner still holds {left}\n{self.owner.told()}")
        except Finding as finding:
            self._tell(finding, list(self._latest) or [Case("end")])
        owner = FuzzedOwner(self._forking, self.folder, "undisturbed")
        try:
            expected = undisturbed(self._forking, owner.address, len(self.innocent.losses))
        finally:
            owner.close()
        if expected != self.innocent.losses:
            at = next(i for i, each in enumerate(expected) if each != self.innocent.losses[i])
            self._tell(
                Finding(f"the innocent trainer has another loss in pass {at}"), list(self._latest) or [Case("end")]
            )

    def again(self, cases: Sequence[Case]) -> None:
        """Sends cases again."""
        by_name: dict[str, Reader | Sender] = {each.name: each for each in (*self.readers, *self.senders)}
        for case in cases:
            try:
                target = by_name[case.target]
                if isinstance(target, Reader):
                    target.read(case)
                else:
                    self._send(target, case)
            except Finding as finding:
                self._tell(finding, [case])
        self._watched()

    def close(self) -> None:
        """Ends all processes."""
        self.innocent.close()
        self.owner.close()
        for each in self.readers:
            each.close()
        self._runner.close()
        self._forking.close()
        self._temporary.cleanup()
