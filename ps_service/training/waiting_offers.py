"""The offers whose trainers wait: their gradients, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from ps_service.policies.offers import Offer, OfferKey, Reason
from ps_service.training.event_queue import DRAINING
from ps_wire.errors import DeadlineExceededError, DrainingError, StaleHandleError

if TYPE_CHECKING:
    from ps_service.training.reported_values import ReportedValues
    from ps_service.training.round_gradients import Contribution
    from ps_wire.attempts import Attempt


class Outcome(NamedTuple):
    """What became of an offer: the version of the optimizer, how many steps its gradients were behind their round, how
    many that has (0 if it is still open), why these do not count (empty if they do), and the values that were reported
    with all of them, reduced by name."""

    version: int
    staleness: int
    counted: int
    reason: str = ""
    values: Mapping[str, Any] = {}


class Offered(NamedTuple):
    """An offer whose trainer waits, the version that its gradients were computed with, and its future."""

    contribution: Contribution
    read: int
    future: Future[Outcome]


class WaitingOffers(dict[OfferKey, Offered]):
    """The offers to one optimizer whose trainers wait. Its user sees to the order of what threads do. `is_draining` is
    set when the owner is about to stop, and has taken back what waits."""

    def __init__(self, reported: ReportedValues) -> None:
        super().__init__()
        self.is_draining = False
        self._reported = reported
        self._expired: dict[OfferKey, str] = {}
        self._outside: dict[OfferKey, Offer] = {}

    def add(self, key: OfferKey, contribution: Contribution, read: int) -> Future[Outcome]:
        """Adds an offer; the future is done once its trainer may go on."""
        future: Future[Outcome] = Future()
        self[key] = Offered(contribution, read, future)
        return future

    def beside(self, attempt: Attempt) -> list[OfferKey]:
        """The offers of other attempts of the same pass that the rounds know."""
        found = [key for key, each in self.items() if attempt.is_beside(each.contribution.attempt)]
        return [key for key in found if key not in self._outside]

    # Those that the rounds do not know yet

    def stay_outside(self, offer: Offer) -> None:
        """Notes that the rounds do not know an offer yet."""
        self._outside[offer.key] = offer

    def enter(self, key: OfferKey) -> Offer | None:
        """The offer, which the rounds are to know now; None if it was taken back, or they know it."""
        return self._outside.pop(key, None)

    def outside_of(self, trainer: bytes) -> list[OfferKey]:
        """The offers of a trainer that the rounds do not know yet."""
        return [key for key in self._outside if key.trainer == trainer]

    # Their ends

    def expire(self, key: OfferKey, why: str) -> None:
        """Notes that the wait for an offer has taken too long; `answer` has to follow."""
        self._expired[key] = why

    def answer(self, key: OfferKey, outcome: Outcome | None) -> None:
        """Ends the wait for an offer, if it waits. The outcome is None if it is not known any more."""
        offered, why = self.pop(key, None), self._expired.pop(key, "")
        if offered is None or outcome is None:
            return
        self._reported.drop(offered.contribution.report)
        if outcome.reason == Reason.WITHDRAWN.value and self.is_draining:
            offered.future.set_exception(DrainingError(DRAINING))
        elif why:
            fate = f"its gradients do not count ({outcome.reason})" if outcome.reason else "its gradients are applied"
            offered.future.set_exception(DeadlineExceededError(f"{why}; {fate}"))
        else:
            offered.future.set_result(outcome)

    def fail(self, key: OfferKey, error: BaseException) -> bool:
        """Ends the wait for an offer with an error; false if nothing waits for it."""
        offered = self.pop(key, None)
        self._expired.pop(key, None)
        if offered is not None:
            self._reported.drop(offered.contribution.report)
            offered.future.set_exception(error)
        return offered is not None

    def fail_all(self, error: BaseException) -> None:
        """Ends all waits with an error."""
        for key in list(self):
            self.fail(key, error)


def gone() -> StaleHandleError:
    """The error for offers to an optimizer that was removed."""
    return StaleHandleError("the optimizer was deleted or replaced, or its module was; make one with ps.optimizer(…)")
