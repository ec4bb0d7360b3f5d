"""Makes optimizers and schedulers of hosted parameters, under names that trainers share."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ps_service.access.namespaces import within
from ps_service.hosting.fingerprints import NO_FINGERPRINT, Fingerprint
from ps_service.hosting.host import Host
from ps_service.hosting.objects import HostedObject
from ps_service.quotas.accounts import NOBODY
from ps_service.tables.optimizer import RowOptimizer
from ps_service.training.optimizers import Covered, HostedOptimizer, optimizer_of
from ps_service.training.schedulers import HostedScheduler
from ps_service.training.spread import WHOLE, Spread
from ps_wire.close_names import argument_hint
from ps_wire.errors import InvalidArgumentError, PsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ps_service.execution.thread_pool import ThreadPool
    from ps_service.measures.curves import Curves
    from ps_service.passes.staleness import StepCounters
    from ps_service.quotas.accounts import Account
    from ps_wire.refs import Ref


class _Counters(Protocol):
    steps: StepCounters


class OptimizerHost(Host, Protocol):
    """The owner of optimizers; see `Engine`."""

    @property
    def compute(self) -> ThreadPool:
        """The threads that run hosted code."""

    @property
    def counters(self) -> _Counters:
        """Counts the steps of optimizers."""

    @property
    def curves(self) -> Curves:
        """The curves of what trainers report with their gradients."""


def create_optimizer(
    engine: OptimizerHost,
    class_name: str,
    groups: Sequence[tuple[Sequence[Ref], Mapping[str, Any]]],
    options: Mapping[str, Any],
    name: str = "",
    consistent: bool = True,
    refuses_non_finite: bool = False,
    fingerprint: Fingerprint = NO_FINGERPRINT,
    object_id: str = "",
    prepare: Callable[[HostedOptimizer], None] | None = None,
    replace: bool = False,
    account: Account = NOBODY,
    spread: Spread = WHOLE,
) -> tuple[HostedObject, bool]:
    """Creates an optimizer, or returns the existing one of that name.

    Without a name, an optimizer of named objects gets a name made from them and the covered parameters, in any order,
    so that trainers that ask for the same optimizer share it. A new one is handed to `prepare` before others can find
    it. With `replace`, it takes the place of one that was made with other options. Raises `NotAllowedError`,
    `NameConflictError` if the name is taken by something else, and `InvalidArgumentError` if there is nothing to
    optimize, a parameter is given twice or was computed from others, or the class refuses the arguments.
    """
    cls = engine.allowlist.optimizer(class_name)
    hosts: dict[str, HostedObject] = {}
    members = []
    for refs, own in groups:
        members.append(([_covered(engine, ref, hosts) for ref in refs], own))
    if not hosts:
        raise InvalidArgumentError("an optimizer needs at least one parameter; a handle of a module has parameters()")
    covered = [each.parameter for refs, _ in members for each in refs]
    if len(set(map(id, covered))) < len(covered):
        # Torch only warns, and would step it more than once.
        raise InvalidArgumentError("an optimizer was given the same parameter twice; several references may share one")
    if not issubclass(cls, RowOptimizer) and any(host.is_table for host in hosts.values()):
        raise InvalidArgumentError("a table has an optimizer of its own, which it was made with; step that")
    name = name or _shared_name(hosts.values(), members)

    def make() -> HostedObject:
        try:
            value = HostedOptimizer(cls, members, options, consistent, refuses_non_finite, engine.parameter_locks)
        except PsError:
            raise
        except (TypeError, ValueError) as error:
            close = argument_hint(cls, options)
            raise InvalidArgumentError(f"{class_name} refuses its arguments: {error}{close}") from None
        value.spread = spread
        value.counter = engine.counters.steps.of(name)
        value.reported.show_in(engine.curves, name, class_name)
        value.title = f"the optimizer {name or class_name!r} on owner {engine.name!r}"
        if prepare is not None:
            prepare(value)
        made = HostedObject(engine.name, value, engine.parameter_locks, name, fingerprint, object_id)
        made.class_name, made.made_with = class_name, "ps.optimizer(…)"
        value.object_id = made.ref.object_id
        # On the event loop, because the compute threads take the registry's lock while they hold their own.
        made.when_removed = partial(engine.compute.tell, value.end)
        engine.registry.bind(made, hosts.values())
        return made

    remedy = "change them for all trainers with set_options(), "
    return engine.registry.get_or_make(name, fingerprint, make, remedy, replace, account)


def create_scheduler(
    engine: Host,
    class_name: str,
    optimizer: Ref,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    name: str = "",
    fingerprint: Fingerprint = NO_FINGERPRINT,
    object_id: str = "",
    replace: bool = False,
    account: Account = NOBODY,
) -> tuple[HostedObject, bool]:
    """Creates a learning-rate scheduler for an optimizer, or returns the existing one of that name; with `replace` in
    the place of one that was made with other arguments. Raises as `create_optimizer`."""
    cls = engine.allowlist.scheduler(class_name)
    hosted = engine.registry.find(optimizer)
    value = optimizer_of(hosted)
    is_named = bool(name) or value.spread.is_named
    if not name and hosted.name:
        name = f"{hosted.name}.{cls.__name__}"

    def make() -> HostedObject:
        try:
            scheduler = HostedScheduler(cls, value, args, kwargs)
            scheduler.is_named = is_named
        except (TypeError, ValueError) as error:
            close = argument_hint(cls, kwargs)
            raise InvalidArgumentError(f"{class_name} refuses its arguments: {error}{close}") from None
        made = HostedObject(engine.name, scheduler, engine.parameter_locks, name, fingerprint, object_id)
        made.class_name, made.made_with = class_name, "ps.scheduler(…)"
        engine.registry.bind(made, [hosted])
        return made

    return engine.registry.get_or_make(name, fingerprint, make, replace=replace, account=account)


def _covered(engine: Host, ref: Ref, hosts: dict[str, HostedObject]) -> Covered:
    host = engine.registry.find(ref)
    hosts[ref.object_id] = host
    return Covered(ref, host.parameter(ref.parameter), host.parameter_state(ref.parameter))


def _shared_name(hosts: Any, members: Sequence[tuple[Sequence[Covered], Any]]) -> str:
    names = sorted(host.name for host in hosts)
    if not all(names):
        return ""
    joined = "+".join([names[0], *map(within, names[1:])])  # in the namespace of the first
    # Sorted: another order is a request for the same optimizer, which is refused because state is by position. Two
    # optimizers would both train the parameters.
    covered = sorted(each.ref for refs, _ in members for each in refs)
    if len(covered) == sum(len(host.parameters) for host in hosts):
        return f"{joined}.optimizer"
    digest = hashlib.blake2b("\n".join(f"{ref.object_id}{ref.parameter}" for ref in covered).encode(), digest_size=4)
    return f"{joined}.optimizer-{digest.hexdigest()}"
