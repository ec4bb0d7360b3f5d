"""Makes hosted objects, and finds those that exist."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parameter import is_lazy

from ps_service.hosting.aliases import check_aliases
from ps_service.hosting.hooks import check_hooks
from ps_service.hosting.identities import check_identities
from ps_service.hosting.objects import HostedObject
from ps_service.numerics.random import Seeded
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_wire.refs import Ref


def create(
    engine: Engine,
    class_name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    name: str = "",
    seed: int | None = None,
    fingerprint: bytes = b"",
    object_id: str = "",
) -> tuple[HostedObject, bool]:
    """Makes an object of an allowed class, or finds the one of that name.

    Args:
        class_name: Name of the class on the allow-list.
        args: Its arguments.
        kwargs: Its keyword arguments.
        name: Named objects are made once and stay until deleted.
        seed: The constructor's random numbers are those after `torch.manual_seed(seed)`; the generators of the process
            stay as they are.
        fingerprint: Tells requests with other arguments apart.
        object_id: The id it had before its owner started again; a new one if empty.

    Returns:
        The object, and whether it was made.

    Raises:
        NotAllowedError: The class is not on the allow-list.
        NameConflictError: The name is taken by something made from other arguments.
        InvalidArgumentError: It is a module whose parameters have no shapes yet, hooks that cannot run here,
            attributes in the memory of parameters, or what it would look up by its own identity.
        TooLargeError: It is a module of torch, and larger than one object may be.
        Exception: Whatever the constructor raises.
    """
    cls = engine.allowlist.hosted(class_name)

    constructor = engine.allowlist.functions.constructor(cls, class_name)

    def make() -> HostedObject:
        value = _construct(lambda: constructor(*args, **kwargs), seed)
        if isinstance(value, nn.Module):
            _check_shapes(class_name, value)
            check_hooks(class_name, value)
            value.to(engine.device)
            check_aliases(class_name, value)
            check_identities(class_name, value)
        made = HostedObject(engine.name, value, engine.parameter_locks, name, fingerprint, object_id)
        made.class_name = class_name
        return made

    return engine.registry.get_or_make(name, fingerprint, make)


def fingerprint(*parts: bytes) -> bytes:
    """What tells two requests for one name apart."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def attach(engine: Engine, target: str | Ref) -> HostedObject:
    """The object of a name or handle.

    Raises:
        UnknownNameError: There is none of that name.
        StaleHandleError: The handle's object is gone.
        ForeignHandleError: It is another owner's.
    """
    return engine.registry.named(target) if isinstance(target, str) else engine.registry.find(target)


def _construct(make: Callable[[], Any], seed: int | None) -> Any:
    if seed is None:
        return make()
    with Seeded(seed):
        return make()


def _check_shapes(class_name: str, module: nn.Module) -> None:
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        raise InvalidArgumentError(
            f"{class_name} gets the shapes of its parameters from its first input, of which an owner has many; "
            "use the class that takes them as arguments"
        )
