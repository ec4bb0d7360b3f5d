"""Which objects move together, and which cannot move."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ps_service.hosting.pinned import Pinned
from ps_service.tables.optimizer import RowOptimizer
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.schedulers import HostedScheduler
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject


def groups(engine: Engine) -> Iterator[list[HostedObject]]:
    """The named objects that are no tables and no optimizers of tables, with all that depends on each other. What
    snapshots have stays where it is."""
    seen: set[HostedObject] = set()
    neighbours = _neighbours(engine)
    for hosted in sorted(engine.registry.objects(), key=lambda each: each.name):
        if isinstance(hosted.value, Pinned):
            continue
        if hosted.name and hosted not in seen and hosted.ref.object_id not in engine.moves.held:
            found = _connected([hosted], neighbours)
            seen.update(found)
            if not all(_is_of_tables(each) for each in found):
                yield found


def group_of(engine: Engine, names: Iterable[str]) -> list[HostedObject]:
    """The objects with these names, and all that depends on them or on which they depend, each after those that it was
    made from. Raises `InvalidArgumentError` if they cannot move, and as `Registry.named`."""
    found = _connected([engine.registry.named(name) for name in names], _neighbours(engine))
    if why := refusal(engine, found):
        raise InvalidArgumentError(why)
    return found


def moved_with(engine: Engine, object_id: str) -> list[str]:
    """The ids of the named objects that have moved with one that is here: of all that belongs together; empty if it is
    not here."""
    hosted = engine.registry.get(object_id)
    found = [] if hosted is None else _connected([hosted], _neighbours(engine))
    return [each.ref.object_id for each in found if each.name]


def refusal(engine: Engine, group: list[HostedObject]) -> str:
    """Why objects that belong together cannot move; empty if they can."""
    own = {id(parameter) for each in group for parameter in each.parameters.values()}
    for each in engine.registry.objects():
        if isinstance(each.value, nn.Parameter) and id(each.value) in own:
            return f"a trainer has a handle of a parameter of {group[0]} that hosted code has returned; drop it first"
    for each in group:
        is_there = engine.registry.get(each.ref.object_id) is each
        if why := _refusal(each) if is_there else f"{each} belongs to it, and was deleted or replaced since":
            return f"{group[0]} cannot move to another owner: {why}"
    return ""


def parameters_of(group: Iterable[HostedObject]) -> dict[int, nn.Parameter]:
    """The parameters of some objects, by the ids of the tensors."""
    return {id(parameter): parameter for each in group for parameter in each.parameters.values()}


def _refusal(hosted: HostedObject) -> str:
    spec, value = hosted.creation_spec, hosted.value
    if hosted.is_table:
        return (
            f"{hosted} is a table that was used to make it; rows of tables move by themselves, with drain and rebalance"
        )
    if not hosted.name:
        return f"{hosted} belongs to it; only named objects move, so give that a name=, or drop its last handle"
    if spec is None:
        return f"{hosted} was not made by a request of a trainer, so it cannot be made elsewhere"
    if not spec.is_whole:
        return f"{hosted} was constructed with a handle to another owner's object"
    if isinstance(value, HostedOptimizer):
        if value.rounds is not None:
            return f"{hosted} has the policy {value.rounds.policy}, whose rounds stay where they are"
        if len(others := getattr(spec.request, "owners", ())) > 1:
            return f"{hosted} has parts on the owners {', '.join(others)}, which have to step together"
    elif not (hosted.is_module or isinstance(value, HostedScheduler) or hosted.has_state):
        return f"{hosted} has no state_dict and load_state_dict in its class"
    return ""


def _neighbours(engine: Engine) -> dict[HostedObject, set[HostedObject]]:
    found: dict[HostedObject, set[HostedObject]] = {}
    for each in engine.registry.objects():
        for other in each.creation_spec.dependencies if each.creation_spec is not None else ():
            found.setdefault(each, set()).add(other)
            found.setdefault(other, set()).add(each)
    return found


def _connected(begin: list[HostedObject], neighbours: dict[HostedObject, set[HostedObject]]) -> list[HostedObject]:
    found: dict[HostedObject, None] = {}
    waiting = list(begin)
    while waiting:
        if (each := waiting.pop(0)) not in found:
            found[each] = None
            waiting += neighbours.get(each, ())
    ordered: dict[HostedObject, None] = {}
    for each in found:
        _visit(each, ordered)
    return list(ordered)


def _visit(hosted: HostedObject, ordered: dict[HostedObject, None]) -> None:
    for each in hosted.creation_spec.dependencies if hosted.creation_spec is not None else ():
        if each not in ordered:
            _visit(each, ordered)
    ordered[hosted] = None


def _is_of_tables(hosted: HostedObject) -> bool:
    value = hosted.value
    if isinstance(value, HostedScheduler):
        spec = hosted.creation_spec
        return spec is not None and all(map(_is_of_tables, spec.dependencies))
    return hosted.is_table or (isinstance(value, HostedOptimizer) and isinstance(value.optimizer, RowOptimizer))
