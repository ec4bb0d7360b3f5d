"""The owners and trainers of the crash test, as processes that are forked."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.crash.events import Action, Violation
from tests.crash.shadow import Shadow
from tests.forking.process import Forked, Forking
from tests.ports import ReservedPort

PATIENCE: Final = 60.0
"""Seconds within which a process does what it should; much longer than it takes."""


class OwnerProcess:
    """An owner that is started again and again, on the same address and with the same data directory."""

    def __init__(self, forking: Forking, folder: Path, name: str, durability: str) -> None:
        self.name = name
        self.durability = durability
        # What it has promised when it last served.
        self._promised = durability
        self.data = folder / name
        self._shadow = folder / f"{name}.shadow"
        self.log = folder / f"{name}.log"
        self._forking = forking
        self._port = ReservedPort()
        self.address = self._port.address
        self._process: Forked | None = None
        self.data.mkdir()
        self._shadow.mkdir()

    @property
    def always(self) -> bool:
        """Whether nothing that was acknowledged may be lost if the machine loses its power."""
        return self._promised == "always"

    @property
    def interval(self) -> float:
        """Seconds of which changes may be lost then."""
        return 0.0 if self.always else float(self._promised.partition(":")[2])

    def start(self, point: str = "", count: int = 1) -> bool:
        """Starts it, and waits until it serves, or has ended at a point. Whether it serves."""
        flags = ("--name", self.name, "--listen", self.address, "--data-dir", str(self.data))
        flags = (*flags, "--durability", self.durability, "--import", "tests.crash.hosted", "--lease-seconds", "20")
        flags = (*flags, "--drain-seconds", "3", "--log-bytes", str(1 << 20))
        self._process = self._forking.start(
            "tests.crash.owner", str(self._shadow), str(self.log), point, str(count), *flags
        )
        line = self._process.stdout.readline()
        if line:
            self._promised = self.durability
            return True
        self._ended(PATIENCE)
        if not point or self.code != -signal.SIGKILL:
            said = self.log.read_text(errors="replace")[-1000:] if self.log.exists() else ""
            raise Violation(f"{self.name} did not start, and ended with {self.code}; see {self.log}: {said}")
        return False

    def arm(self, point: str, count: int) -> None:
        """Has it end itself at a point."""
        self._command(f"arm {point} {count}")

    def disarm(self) -> None:
        """Has it not end itself."""
        self._command("disarm")

    def checkpoint(self) -> None:
        """Has it write a checkpoint."""
        self._command("checkpoint")

    def _command(self, line: str) -> None:
        assert self._process is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def terminate(self) -> None:
        """Asks it to end in order."""
        assert self._process is not None
        self._process.terminate()

    def kill(self) -> None:
        """Kills it, and waits until it has ended."""
        assert self._process is not None
        self._process.kill()
        self._ended(PATIENCE)

    def ended(self, seconds: float) -> bool:
        """Whether it ends by itself within some time; it must have been killed then, or have been stopped."""
        assert self._process is not None
        if self._process.returncode is not None:
            return True
        try:
            self._ended(seconds)
        except TimeoutError:
            return False
        return True

    def _ended(self, seconds: float) -> None:
        assert self._process is not None
        self.code = self._process.wait(seconds)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def lose(self, choose: object) -> None:
        """Lets the power of its machine go, once it was killed."""
        shadow = Shadow(self.data, self._shadow)
        shadow.lose(choose)  # type: ignore[arg-type]
        shadow.close()

    def damage_checkpoint(self, choose: object) -> bool:
        """Damages the newest of two checkpoints; whether there were two."""
        found = sorted(self.data.glob("checkpoint-*"))
        if len(found) < 2:
            return False
        path = choose.choice([each for each in sorted(found[-1].iterdir()) if each.stat().st_size])  # type: ignore[attr-defined]
        content = bytearray(path.read_bytes())
        content[choose.randrange(len(content))] ^= 0x10  # type: ignore[attr-defined]
        path.write_bytes(content)
        return True

    def tell_stacks(self) -> None:
        """Has it write what its threads do."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)

    def close(self) -> None:
        """Ends it."""
        if self._process is not None and self._process.returncode is None:
            self.kill()
        self._port.close()


def told(actions: dict[int, Action], slot: int, line: dict[str, Any]) -> None:
    """Takes up what a trainer has told of one of its actions."""
    if "begin" in line:
        actions[line["begin"]] = Action(slot, line["workload"], line["what"])
    elif "attempt" in line:
        actions[line["attempt"]].attempts += 1
    else:
        done = actions[line["done"]]
        done.result, done.done_at = line["result"], line["at"]


class TrainerProcess:
    """A trainer, and what it has told."""

    def __init__(
        self,
        forking: Forking,
        slot: int,
        seed: str,
        transport: str,
        names: Sequence[str],
        owners: Sequence[OwnerProcess],
    ) -> None:
        self.slot = slot
        self.failure = ""
        self.is_dead = False
        self._actions: dict[int, Action] = {}
        self._changed = threading.Condition()
        self._is_paused = False
        self._answered: list[tuple[float, str]] = []
        addresses = [each.address for each in owners]
        log = owners[0].data.with_name(f"trainer{slot}.log")
        arguments = (str(log), str(slot), seed, transport, ",".join(names), *addresses)
        self._process = forking.start("tests.crash.trainer", *arguments)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            found = json.loads(line)
            with self._changed:
                if "paused" in found:
                    self._is_paused = True
                elif "failed" in found:
                    self.failure = found["failed"]
                else:
                    told(self._actions, self.slot, found)
                self._changed.notify_all()

    def go(self) -> None:
        """Lets it work."""
        with self._changed:
            self._is_paused = False
        self._command("go")

    def pause(self) -> None:
        """Asks it to stop after its action."""
        if not self._is_paused:
            self._command("pause")

    def _command(self, line: str) -> None:
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def wait_paused(self, until: float) -> None:
        """Waits until it has stopped. Raises `Violation` if it has failed, or does not stop in time."""
        with self._changed:
            while not self._is_paused:
                self.check()
                if not self._changed.wait(min(0.5, until - time.monotonic())) and time.monotonic() > until:
                    self._process.send_signal(signal.SIGUSR1)
                    last = list(self._actions.values())[-3:]
                    raise Violation(f"trainer {self.slot} is stuck; its last actions are {last}")

    def check(self) -> None:
        """Raises `Violation` if it has failed."""
        if self.failure:
            raise Violation(f"trainer {self.slot} has failed: {self.failure}")
        if not self.is_dead and self._process.poll() is not None:
            raise Violation(f"trainer {self.slot} has ended with {self._process.returncode}")

    def take_actions(self) -> list[Action]:
        """Its actions since the last time; what was begun and is not done is in doubt. It has paused, or is dead."""
        with self._changed:
            taken = list(self._actions.values())
            self._actions.clear()
        return taken

    def first_done(self, workloads: dict[str, set[str]], owner: str, since: float) -> float | None:
        """When it was first answered by an owner since a time."""
        with self._changed:
            found = [
                each.done_at
                for each in self._actions.values()
                if each.is_done and each.done_at > since and workloads[each.workload] == {owner}
            ]
        return min(found, default=None)

    def kill(self) -> None:
        """Kills it; afterwards all it has told is known."""
        self.is_dead = True
        self._process.kill()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
