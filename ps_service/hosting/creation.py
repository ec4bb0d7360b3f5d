"""Makes hosted objects, and finds those that exist."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parameter import is_lazy

from ps_service.hosting.aliases import check_aliases
from ps_service.hosting.fingerprints import NO_FINGERPRINT, Fingerprint
from ps_service.hosting.hooks import check_hooks
from ps_service.hosting.objects import HostedObject
from ps_service.quotas.accounts import NOBODY
from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.random import Seeded

if TYPE_CHECKING:
    from ps_service.hosting.host import Host
    from ps_service.quotas.accounts import Account
    from ps_wire.refs import Ref


def create(
    engine: Host,
    class_name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    name: str = "",
    seed: int | None = None,
    fingerprint: Fingerprint = NO_FINGERPRINT,
    object_id: str = "",
    replace: bool = False,
    account: Account = NOBODY,
) -> tuple[HostedObject, bool]:
    """Makes an object of an allowed class, or finds the existing one of that name. Returns whether it was made, too.

    With a `seed`, the constructor draws the numbers that follow `torch.manual_seed(seed)`; the generators of the
    process are not changed. `object_id` is its id before a restart of the owner. A new one counts for an `account`.
    Raises `NotAllowedError` for a class that is not on the allow-list, `InvalidArgumentError` for a module that cannot
    be hosted, `TooLargeError` for one of torch that is larger than the limit, as `Registry.get_or_make`, and what the
    constructor raises.
    """
    constructor = engine.allowlist.functions.constructor(engine.allowlist.hosted(class_name), class_name)

    def make() -> HostedObject:
        with nullcontext() if seed is None else Seeded(seed):
            value = constructor(*args, **kwargs)
        if isinstance(value, nn.Module):
            _check_shapes(class_name, value)
            check_hooks(class_name, value)
            value.to(engine.device)
            check_aliases(class_name, value)
        made = HostedObject(engine.name, value, engine.parameter_locks, name, fingerprint, object_id)
        made.class_name = class_name
        return made

    return engine.registry.get_or_make(name, fingerprint, make, replace=replace, account=account)


def attach(engine: Host, target: str | Ref) -> HostedObject:
    """The object with a name or handle. Raises as `Registry.named` or `Registry.find`."""
    return engine.registry.named(target) if isinstance(target, str) else engine.registry.find(target)


def _check_shapes(class_name: str, module: nn.Module) -> None:
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        raise InvalidArgumentError(
            f"{class_name} gets the shapes of its parameters from its first input, of which an owner has many; "
            "use the class that takes them as arguments"
        )
