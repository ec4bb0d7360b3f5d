"""What an identity, a namespace or all together use of an owner."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from ps_service.memory.held import Held
from ps_service.quotas.bucket import Bucket
from ps_service.quotas.quota import REMEDIES
from ps_service.tables.budget import TableBudget
from ps_wire.errors import QuotaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_service.quotas.quota import Quota


class Tally:
    """What an identity, a namespace or all together use, and the `quota` for it. The `section` of the quota file sets
    the quota; `title` is for messages. `counts` change under the lock of `Quotas`; the other parts are safe in all
    threads."""

    def __init__(self, owner: str, section: str, title: str, quota: Quota, clock: Callable[[], float]) -> None:
        self._owner = owner
        self.section: Final = section
        self.title: Final = title
        self.quota = quota
        self.counts: Counter[str] = Counter()
        self.held: Final = Held()
        self.tables: Final = TableBudget(title, 0)
        self.request_bytes = 0
        self.calls: Final = Bucket(clock())
        self.compute: Final = Bucket(clock())
        self._clock = clock

    def used(self, name: str) -> float:
        """How much is used of what the quota of this name is for; 0 where nothing adds up."""
        match name:
            case "held_bytes":
                return self.held.nbytes
            case "request_bytes":
                return self.request_bytes
            case "table_bytes":
                return self.tables.nbytes
            case "calls_per_second":
                return self.calls.per_second(self._clock())
            case "compute_per_second":
                return self.compute.per_second(self._clock())
            case "table_rows":
                return self.tables.rows
            case _:
                return self.counts[name]

    def check(self, **asked: float) -> None:
        """Raises `QuotaError` if so much more, by the names of quotas, may not be used."""
        for name, more in asked.items():
            quota = getattr(self.quota, name)
            if quota < math.inf and more > 0 and (used := self.used(name)) + more > quota:
                raise self.exceeded(name, used, more)

    def has_room(self, nbytes: int) -> bool:
        """Whether a request of so many bytes may arrive now. If there is no other, any may."""
        return not self.request_bytes or self.request_bytes + nbytes <= self.quota.request_bytes

    def no_room(self, nbytes: int) -> QuotaError:
        """The error for such a request."""
        return self.exceeded("request_bytes", self.request_bytes, nbytes)

    def exceeded(self, name: str, used: float, more: float = 0) -> QuotaError:
        """The error for what would be over a quota."""
        needs = f", and this needs {_number(more)} more" if more else ""
        return QuotaError(
            f"owner {self._owner!r} refuses this: {self.title} may use {_number(getattr(self.quota, name))} of {name}, "
            f"uses {_number(used)}{needs}. {REMEDIES[name]}, or have its operator raise {name} in [{self.section}] of "
            "the quota file"
        )

    def __repr__(self) -> str:
        return f"<Tally of {self.title}: {dict(self.counts)}>"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
