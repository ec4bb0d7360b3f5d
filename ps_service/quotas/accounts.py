"""What the objects, sessions and passes of an owner count for, and what is used there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from ps_service.memory.held import Held
from ps_service.quotas.bucket import Bucket
from ps_service.tables.budget import TableBudget

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_service.quotas.quota import Quota


class Account(NamedTuple):
    """Who uses something: an identity, empty where nobody is asked who it is; and its namespace, empty for the default
    one."""

    identity: str = ""
    namespace: str = ""


NOBODY: Final = Account()


class Tally:
    """What an identity, a namespace or all together use, and the `quota` for it. The `section` of the quota file sets
    the quota; `title` is for messages. `counts` change under the lock of `Quotas`; the other parts are safe in all
    threads."""

    def __init__(self, section: str, title: str, quota: Quota, clock: Callable[[], float]) -> None:
        self.section: Final = section
        self.title: Final = title
        self.quota = quota
        self.counts: Counter[str] = Counter()
        self.held: Final = Held()
        self.tables: Final = TableBudget(title, 0)
        self.calls: Final = Bucket(clock())
        self.compute: Final = Bucket(clock())
        self._clock = clock

    def used(self, name: str) -> float:
        """How much is used of what the quota of this name is for; 0 where nothing adds up."""
        match name:
            case "held_bytes":
                return self.held.nbytes
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

    def __repr__(self) -> str:
        return f"<Tally of {self.title}: {dict(self.counts)}>"
