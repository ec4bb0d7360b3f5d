"""The quotas of an owner: what each identity, each namespace and all together use, and how much they may."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from ps_service.access.reread import Reread
from ps_service.memory.held import Held
from ps_service.quotas.accounts import NOBODY, Account
from ps_service.quotas.quota import NAMES, NO_QUOTA, Settings
from ps_service.quotas.tallies import Tally

if TYPE_CHECKING:
    from ps_service.memory.held import Share
    from ps_service.quotas.quota import QuotaFile

_log = logging.getLogger(__name__)

_DEFAULT: Final = "default"
"""The name of the namespace whose name is kept as an empty one."""


class Use(NamedTuple):
    """How much is used of what may have a quota, which is infinite if there is none."""

    section: str
    name: str
    used: float
    quota: float


class Quotas:
    """Counts what is used, and refuses what would be over a quota. Without a file of quotas nothing is counted, and
    nothing refused. Safe from several threads; the clock is monotonic, in seconds.

    A quota is one of this owner: several owners do not add up what an identity uses of them.
    """

    def __init__(self, owner: str, file: QuotaFile | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_on: Final = file is not None
        self.clock: Final = clock
        # What the requests of a trainer count for.
        self.account_of: Callable[[bytes], Account] = lambda _: NOBODY
        self._owner = owner
        self._file = None if file is None else Reread(file, "quotas")
        self._lock = threading.RLock()  # the garbage collector may free what counts while a thread has it
        self._all = Tally(owner, "all", "all together", self._settings.everybody, clock)
        self._identities: dict[str, Tally] = {}
        self._namespaces: dict[str, Tally] = {}
        self._tallies: dict[Account, tuple[Tally, ...]] = {}

    def tallies(self, account: Account) -> tuple[Tally, ...]:
        """Where something of an account counts: for its identity, its namespace, and all together."""
        found = self._tallies.get(account)
        if found is not None:
            return found
        with self._lock:
            identity, namespace = self._identities.get(account.identity), self._namespaces.get(account.namespace)
            if identity is None:
                title = f"the identity {account.identity!r}" if account.identity else "everybody without an identity"
                identity = Tally(self._owner, f"identity.{account.identity}", title, NO_QUOTA, self.clock)
                self._identities[account.identity] = identity
            if namespace is None:
                name = account.namespace or _DEFAULT
                namespace = Tally(self._owner, f"namespace.{name}", f"the namespace {name!r}", NO_QUOTA, self.clock)
                self._namespaces[account.namespace] = namespace
            self._set_quotas()
            found = self._tallies[account] = (identity, namespace, self._all)
            return found

    def check(self, account: Account, **asked: float) -> None:
        """Raises `QuotaError` if an account may not use so much more, by the names of quotas."""
        for tally in self.tallies(account):
            tally.check(**asked)

    def take(self, account: Account, **used: float) -> None:
        """Counts what an account uses from now on."""
        with self._lock:
            for tally in self.tallies(account):
                for name, more in used.items():
                    tally.counts[name] += more  # type: ignore[assignment]

    def give(self, account: Account, **used: float) -> None:
        """Counts what an account does not use any more."""
        self.take(account, **{name: -less for name, less in used.items()})

    def admit(self, account: Account, **asked: float) -> None:
        """As `check` and then `take`, so that several threads together stay below the quota."""
        with self._lock:
            self.check(account, **asked)
            self.take(account, **asked)

    def admit_call(self, account: Account, depth: int = 0, patience: float = 0.0) -> float:
        """Counts a request, and returns for how many seconds it has to wait. Raises `QuotaError` if that is longer than
        its `patience`, or if it is nested too deeply."""
        now, longest = self.clock(), 0.0
        with self._lock:
            for tally in self.tallies(account):
                quota = tally.quota
                if depth > quota.nesting:
                    raise tally.exceeded("nesting", depth)
                for bucket, name, rate, amount in (
                    (tally.calls, "calls_per_second", quota.calls_per_second, 1.0),
                    (tally.compute, "compute_per_second", quota.compute_per_second, 0.0),
                ):
                    seconds = bucket.wait(amount, rate, rate * quota.burst_seconds, now) if rate < math.inf else 0.0
                    if seconds > patience:
                        raise tally.exceeded(name, bucket.per_second(now))
                    longest = max(longest, seconds)
            for tally in self.tallies(account):
                tally.calls.take(1.0, tally.quota.calls_per_second, now)
        return longest

    def charge(self, account: Account | None, seconds: float) -> None:
        """Counts the time that a compute thread has run something for an account, or for the owner itself."""
        now = self.clock()
        with self._lock:
            for tally in self.tallies(account or NOBODY):
                tally.compute.take(seconds, tally.quota.compute_per_second, now)

    def check_message(self, account: Account, nbytes: int) -> None:
        """Raises `QuotaError` if a message may not be as large."""
        for tally in self.tallies(account):
            if nbytes > tally.quota.message_bytes:
                raise tally.exceeded("message_bytes", nbytes)

    def check_held(self, account: Account) -> None:
        """Raises `QuotaError` if an account has used up what passes and results may hold."""
        for tally in self.tallies(account):
            if tally.quota.held_bytes < math.inf and (used := tally.held.nbytes) >= tally.quota.held_bytes:
                raise tally.exceeded("held_bytes", used)

    def hold(self, account: Account, nbytes: int) -> Share:
        """Counts bytes as held for as long as the returned share lives. Raises `QuotaError` if there is no room."""
        with self._lock:
            self.check(account, held_bytes=nbytes)
            return Held(tuple(each.held for each in self.tallies(account))).count(nbytes)

    def least(self, account: Account, name: str) -> float:
        """The smallest quota of this name; infinity if there is none."""
        return min(float(getattr(tally.quota, name)) for tally in self.tallies(account))

    @property
    def _settings(self) -> Settings:
        return Settings() if self._file is None else self._file.content

    def look(self) -> None:
        """Reads the file again if it has changed. While it cannot be read, or is not valid, what it had before stays,
        and the log says so once."""
        if self._file is not None and self._file.look():
            with self._lock:
                self._set_quotas()
            _log.info("the quota file was read again")

    def uses(self) -> Iterator[Use]:
        """What is used or has a quota: of all together, of each identity, and of each namespace."""
        with self._lock:
            tallies = [self._all, *self._identities.values(), *self._namespaces.values()]
        for tally in tallies:
            for name in NAMES:
                used, quota = tally.used(name), getattr(tally.quota, name)
                if name != "burst_seconds" and (used or quota < math.inf):
                    yield Use(tally.section, name, used, quota)

    def _set_quotas(self) -> None:
        settings = self._settings
        self._all.quota = settings.everybody
        for name, tally in self._identities.items():
            tally.quota = settings.identities.get(name, settings.default)
        for name, tally in self._namespaces.items():
            tally.quota = settings.namespaces.get(name or _DEFAULT, NO_QUOTA)
