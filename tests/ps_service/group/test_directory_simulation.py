"""Thousands of random orders of claims, cuts, moves, joins and deaths, with the code that keepers and owners run.

Nothing here has a clock or a network: time goes on when the simulation says so, and messages arrive in any order, late,
twice or never. Each process has a clock of its own, which goes up to five percent too fast or too slow.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from ps_service.group import registers
from ps_service.group.lease import Lease
from ps_service.group.lineage import Lineage
from ps_service.group.registers import Answer, Claim, Entry, Registers
from ps_wire.errors import PsError

NAMES = ("ps0", "ps1")
ORDERS = int(os.environ.get("ORDERS", "25"))
"""Orders of each kind with three keepers, with which faults show soonest, and twice as many as with more of them;
`make simulation` tries more."""

STEPS = 400
"""What happens in each of them, at most."""


class Process:
    """A process with a clock. One that is `frozen` does nothing, and does not know it afterwards."""

    def __init__(self, world: World) -> None:
        self._rate, self._offset = world.random.uniform(0.95, 1.05), world.random.uniform(0.0, 100.0)
        self.side = world.random.randrange(2)
        self.alive = True
        self.frozen = False

    def clock(self, world: World) -> float:
        return self._offset + self._rate * world.now

    @property
    def runs(self) -> bool:
        return self.alive and not self.frozen


class Keeper(Process):
    """A process that is the keeper with a name. Others may believe to be that, too."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world)
        self.name = name
        # As a file with the next number in the data directory.
        world.epochs[name] += 1
        self._epoch = world.epochs[name]
        self.registers = Registers(name, world.keepers, self.clock(world), has_directory=True)

    def look(self, world: World) -> Callable[[], None]:
        """Looks into its data directory; the process may learn late of what it saw."""
        began, has_it = self.clock(world), world.epochs[self.name] == self._epoch
        return (lambda: self.registers.confirm(began)) if has_it else lambda: None


class Owner(Process):
    """A start of an owner."""

    def __init__(self, world: World, name: str, earlier: tuple[str, ...]) -> None:
        super().__init__(world)
        world.starts += 1
        lineage = Lineage(f"start-{world.starts}", earlier)
        self.lease = Lease(Entry(name, f"address-{world.starts}", lineage=lineage), world.keepers)
        self.stopped: PsError | None = None
        self.has_acted = False

    @property
    def entry(self) -> Entry:
        return self.lease.entry

    def acknowledges(self, world: World) -> bool:
        """Whether it would answer now. That does not depend on whether it is frozen: it may go on at any moment."""
        return self.alive and self.stopped is None and self._offset + self._rate * world.now <= self.lease.until


@dataclass
class Sent:
    """A message, which arrives late, twice or never."""

    sender: Process
    side: int
    arrives: Callable[[], None]


@dataclass
class World:
    random: random.Random
    keepers: tuple[str, ...]
    forgets: bool
    now: float = 1.0
    starts: int = 0
    is_cut: bool = False
    processes: list[Keeper] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    looks: list[tuple[Keeper, Callable[[], None]]] = field(default_factory=list)
    epochs: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    latest: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        self.processes = [Keeper(self, name) for name in self.keepers]
        self.owners = [Owner(self, name, ()) for name in NAMES]
        self.now += self.random.choice((0.0, 5.0))

    # What can happen

    def wait(self) -> None:
        self.now += self.random.choice((0.01, 0.1, 0.5, 1.0))

    def look(self) -> None:
        for keeper in self.processes:
            if keeper.runs and self.random.random() < 0.8:
                self.looks.append((keeper, keeper.look(self)))

    def saw(self) -> None:
        while self.looks and self.random.random() < 0.9:
            keeper, confirm = self.looks.pop(self.random.randrange(len(self.looks)))
            if keeper.runs:
                confirm()

    def claim(self, owner: Owner | None = None) -> None:
        owner = owner or self.random.choice(self.owners)
        if owner.runs and (owner.stopped is None or self.random.random() < 0.3):
            claim, began = owner.lease.claim(leaves=owner.stopped is not None), owner.clock(self)
            for name in self.keepers:
                self.send(owner, name, claim, began)

    def send(self, owner: Owner, name: str, claim: Claim, began: float) -> None:
        # After a move there are several, and either may get it.
        for keeper in [each for each in self.processes if each.name == name]:

            def arrives(keeper: Keeper = keeper) -> None:
                answer = keeper.registers.answer(claim, keeper.clock(self))
                self.sent.append(Sent(keeper, owner.side, lambda: self.answered(owner, claim, began, answer)))

            self.sent.append(Sent(owner, keeper.side, self.if_runs(keeper, arrives)))

    def answered(self, owner: Owner, claim: Claim, began: float, answer: Answer) -> None:
        if not owner.runs or owner.stopped is not None:
            return
        owner.lease.heard(claim, began, answer)
        owner.stopped = owner.lease.verdict(owner.clock(self))
        if owner.acknowledges(self) and not owner.has_acted:
            owner.has_acted = True
            epoch, latest = owner.entry.epoch, self.latest.get(owner.entry.name, 0)
            # Keepers that have lost all their registers do not know it any more.
            assert epoch > latest or self.forgets, "a later owner has a higher epoch"
            self.latest[owner.entry.name] = epoch

    @staticmethod
    def if_runs(process: Process, do: Callable[[], None]) -> Callable[[], None]:
        return lambda: do() if process.runs else None

    def arrive_some(self) -> None:
        for _ in range(self.random.randrange(16)):
            self.arrive()
            self.check()

    def arrive(self) -> None:
        if not self.sent:
            return
        # Mostly one of the latest.
        place = max(self.random.randrange(len(self.sent)) for _ in range(self.random.choice((1, 4, 16))))
        message = self.sent[place]
        if self.is_cut and message.sender.side != message.side:
            return
        if self.random.random() < 0.9:
            del self.sent[place]
        if self.random.random() < 0.95:
            message.arrives()

    def cut(self) -> None:
        self.is_cut = True
        for each in (*self.processes, *self.owners):
            each.side = self.random.randrange(2)

    def heal(self) -> None:
        self.is_cut = False

    def freeze(self) -> None:
        self.random.choice((*self.processes, *self.owners)).frozen = True

    def thaw(self) -> None:
        self.random.choice((*self.processes, *self.owners)).frozen = False

    def die(self) -> None:
        if self.forgets or self.random.random() < 0.5:
            keepers = [each for each in self.processes if self.forgets] or self.owners
            self.random.choice((*keepers, *self.owners)).alive = False

    def join(self) -> None:
        """Another owner, of the name of another one or of a new one, without the state of any."""
        self.owners.append(Owner(self, self.random.choice((*NAMES, "ps2")), ()))

    def move(self) -> None:
        """A later start of the state of an owner, whether or not that has ended."""
        before = self.random.choice(self.owners)
        lineage = before.entry.lineage
        self.owners.append(Owner(self, before.entry.name, (lineage.incarnation, *lineage.earlier)))

    def move_keeper(self) -> None:
        """Another process takes the data directory of a keeper, whether or not that has ended."""
        if self.forgets:
            self.processes.append(Keeper(self, self.random.choice(self.keepers)))

    # What has to hold

    def check(self) -> None:
        names, numbers = set(), set()
        for each in self.owners:
            if not each.acknowledges(self):
                continue
            entry = each.lease.entry
            assert entry.name not in names, f"two owners of one name acknowledge: {entry.name}"
            assert entry.id not in numbers, f"two owners have one number: {entry.id}"
            names.add(entry.name)
            numbers.add(entry.id)

    def run(self) -> int:
        """Returns how many different starts have acted for their name at some time."""
        self.begin()
        often = [self.wait, self.look, self.saw, self.claim, self.arrive_some, self.arrive_some]
        seldom = [self.cut, self.heal, self.freeze, self.thaw, self.thaw, self.die, self.join, self.move]
        seldom.append(self.move_keeper)
        for _ in range(STEPS):
            self.random.choice(often if self.random.random() < 0.95 else seldom)()
            self.check()
        self.settle()
        return sum(each.has_acted for each in self.owners)

    def settle(self) -> None:
        """Without further faults, one start of each name acts for it in the end, if any is left."""
        self.is_cut = False
        current = {name: [each for each in self.processes if each.name == name] for name in self.keepers}
        for keepers in current.values():
            for each in keepers:
                each.frozen, each.alive = False, each.alive or each is keepers[-1]
        self.sent.clear()
        self.looks.clear()
        for each in self.owners:
            each.frozen = False
        for _ in range(30):
            self.now += 0.4
            for keeper in self.processes:
                if keeper.runs:
                    keeper.look(self)()
            for owner in sorted(self.owners, key=lambda _: self.random.random()):
                self.claim(owner)
                while self.sent:
                    message = self.sent.pop(0)
                    message.arrives()
                    self.check()
        for name in {each.entry.name for each in self.owners if each.alive and each.stopped is None}:
            assert sum(each.acknowledges(self) for each in self.owners if each.entry.name == name) == 1


def simulated(seed: int, keepers: int, forgets: bool) -> int:
    names = tuple(f"keeper-{i}" for i in range(keepers))
    return World(random.Random(seed), names, forgets).run()


@pytest.mark.parametrize("forgets", [False, True], ids=["keepers stay", "keepers die and move"])
@pytest.mark.parametrize("keepers", [3, 4, 5])
def test_two_owners_of_one_name_never_acknowledge(keepers: int, forgets: bool) -> None:
    orders = ORDERS if keepers == 3 else ORDERS // 2
    had = sum(simulated(seed, keepers, forgets) for seed in range(orders))
    assert had > orders, "owners come to act for their names, and others after them"


@pytest.mark.parametrize(
    ("constant", "value"), [("HOLD_SECONDS", 2.5), ("WAIT_SECONDS", 0.0), ("WAIT_SECONDS", 2.0), ("CHECK_SECONDS", 9.0)]
)
def test_the_simulation_finds_rules_that_do_not_hold(
    monkeypatch: pytest.MonkeyPatch, constant: str, value: float
) -> None:
    monkeypatch.setattr(registers, constant, value)
    with pytest.raises(AssertionError, match="two owners of one name acknowledge"):
        for seed in range(7000):
            simulated(seed, 3, True)
