"""One backward while it runs, and the gradients that it sends to owners."""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from ps_wire.runtime.latency import Latency
    from trainer_client.graph.recorder import WayBack
    from trainer_client.pending import Pending


class RunningBackward:
    """One backward while it runs. It sends the gradients of a call as soon as they are known.

    Args:
        retain_graph: Whether the graph is kept for another backward.
        number: Number of the backward in its context, from 1.
        calls: The recorded calls that it can reach.

    Attributes:
        posts: The requests with gradients that have to be waited for, in order.
    """

    def __init__(self, retain_graph: bool, number: int, calls: Iterable[WayBack] = ()) -> None:
        self.retain_graph = retain_graph
        self.number = number
        self.posts: dict[Pending[Any], None] = {}
        self._after: dict[int, int] = {}
        self._skipped: set[int] = set()
        by_owner: defaultdict[str, list[int]] = defaultdict(list)
        for call in calls:
            by_owner[call.session.owner].append(call.number)
        for numbers in by_owner.values():
            numbers.sort(reverse=True)
            self._after.update(zip(numbers, (0, *numbers), strict=False))

    def add(self, call: WayBack, positions: Sequence[int], gradients: Sequence[torch.Tensor], kept: bool) -> None:
        """Sends the gradients of a call's outputs, if there are any or if the owner may have some.

        Args:
            call: The call.
            positions: Positions of the outputs that have a gradient.
            gradients: As many gradients.
            kept: Whether the owner may have gradients of results that stay on it.
        """
        if positions or kept:
            self.posts[call.post(self, self.after(call.number), positions, gradients)] = None
        else:
            self.skip(call.number)

    def after(self, number: int) -> int | None:
        """The call whose gradients the owner adds just before those of call `number`: the next later call to it.

        Returns:
            Its number; 0 if there is none, None if it is not known.
        """
        after = self._after.get(number)
        while after in self._skipped:
            after = self._after[after]
        return after

    def skip(self, number: int) -> None:
        """Notes that a call has no gradients."""
        self._skipped.add(number)


class LocalBackward:
    """A backward that needs no gradient from an owner: it computes all gradients first and sends them afterwards.

    Args:
        retain_graph: Whether the graph is kept for another backward.
        number: Number of the backward in its context, from 1.
        latency: How long backwards of such graphs take.

    Attributes:
        posts: The requests with gradients.
    """

    def __init__(self, retain_graph: bool, number: int, latency: Latency) -> None:
        self.retain_graph = retain_graph
        self.number = number
        self.latency = latency
        self.posts: dict[Pending[Any], None] = {}
        self._found: list[tuple[int, WayBack, Sequence[int], Sequence[torch.Tensor]]] = []

    def add(self, call: WayBack, positions: Sequence[int], gradients: Sequence[torch.Tensor], kept: bool) -> None:
        """Collects the gradients of a call's outputs; arguments as for `RunningBackward.add`."""
        if positions or kept:
            self._found.append((call.number, call, positions, gradients))

    def post(self) -> None:
        """Sends the collected gradients, the latest call first."""
        self._found.sort(key=itemgetter(0), reverse=True)
        last: dict[str, int] = {}
        for number, call, positions, gradients in self._found:
            owner = call.session.owner
            self.posts[call.post(self, last.get(owner, 0), positions, gradients)] = None
            last[owner] = number


def first_failure(posts: Iterable[Pending[Any]]) -> Exception | None:
    """Waits for every post, so that no request of the backward is left running, and returns the first error."""
    failure = None
    for post in posts:
        try:
            post.wait()
        except Exception as error:
            failure = failure or error
    return failure
