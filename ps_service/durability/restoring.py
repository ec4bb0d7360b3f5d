"""Restores a checkpoint into an owner that has just started."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ps_service.access.identities import remembered
from ps_service.durability import members, move_effects, prepared_steps, rounds
from ps_service.durability.object_states import part_of, set_buffers, set_steps
from ps_service.durability.run_records import applied_runs
from ps_service.durability.store import CheckpointError, parsed
from ps_service.durability.tensors import TensorReader
from ps_service.durability.value_files import FileSource
from ps_service.hosting.objects import HostedObject
from ps_service.measures.curve_messages import told_in
from ps_service.numerics import generators
from ps_service.passes.pass_context import KILLED, STOPPED
from ps_service.quotas.accounts import Account
from ps_service.requests.context import RequestContext
from ps_service.requests.operations import remake
from ps_service.sessions.reply_cache import Answer
from ps_service.training.aggregator import PLAIN
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.codec.messages import messages_in
from ps_wire.codec.payload import PayloadReader
from ps_wire.codec.trees import mapped
from ps_wire.codec.values import Decoder
from ps_wire.errors import StaleHandleError
from ps_wire.number_set import SeenNumbers
from ps_wire.policies import from_plain
from ps_wire.refs import ContextId, Ref
from ps_wire.v1.frames_pb2 import Frame
from ps_wire.v1.values_pb2 import Handle

if TYPE_CHECKING:
    from ps_service.durability.manifest import Manifest
    from ps_service.durability.object_records import Source
    from ps_service.engine import Engine
    from ps_wire.v1 import checkpoint_pb2 as pb

_NO_TRAINER: Final = bytes(16)
_CPU: Final = torch.device("cpu")


def restore(engine: Engine, folder: Path, manifest: Manifest, leave_out: Container[str] = ()) -> list[str]:
    """Restores a checkpoint into an owner of the same name that hosts nothing yet, or raises `CheckpointError`.

    Objects keep their ids, so that handles stay valid. Sessions keep the numbers of the requests that were executed.
    Objects whose name or id is to be left out are not made, nor is what was made from them. Returns what was left out.
    """
    if manifest.owner != engine.name:
        raise CheckpointError(
            f"{folder} is the state of owner {manifest.owner!r}, but this owner is {engine.name!r}; "
            "give each a directory of its own"
        )
    checkpoint = parsed(folder)
    left_out = _leave_out(checkpoint, leave_out)
    try:
        _restore(engine, folder, manifest, checkpoint)
    except CheckpointError:
        raise
    except Exception as error:  # its hashes are right, and it says what no owner writes
        raise CheckpointError(f"{folder} cannot be restored: {error!r}") from error
    return left_out


def _restore(engine: Engine, folder: Path, manifest: Manifest, checkpoint: pb.Checkpoint) -> None:
    source = FileSource(TensorReader(folder, manifest.files))
    made = [_made(engine, record, source) for record in checkpoint.objects]
    for record, hosted in zip(checkpoint.objects, made, strict=True):
        _fill(engine, hosted, record, source)
    for session in checkpoint.sessions:
        _begin(engine, session, source)
    engine.contexts.runs.restore(applied_runs(checkpoint.runs, made))
    move_effects.restore(engine, checkpoint.moves)
    for passes in checkpoint.passes:
        if passes.killed:
            engine.contexts.lose_up_to(ContextId(passes.trainer, passes.killed))
        else:
            why = KILLED if checkpoint.running else STOPPED
            engine.contexts.put_over(passes.trainer, _numbers(passes.ended), set(passes.lost), why)
    for entry in checkpoint.members:
        members.enter(engine, entry)
    for each in checkpoint.prepared:
        prepared_steps.restore(engine, each.prepared, source.load(each.prepared.gradients, each.tensors))
    engine.durability.newer = list(_newer(checkpoint, made))
    engine.durability.whole = checkpoint.whole
    for record, hosted in zip(checkpoint.objects, made, strict=True):
        if record.dependency_only:
            engine.registry.withdraw(hosted)
    if checkpoint.generator:
        # Last, because constructing objects draws random numbers too.
        generators.set_states(checkpoint.generator, engine.device)
    engine.incarnations.earlier = manifest.incarnations
    engine.incarnations.killed = frozenset(manifest.incarnations if checkpoint.running else checkpoint.killed)
    engine.durability.position, engine.durability.code = checkpoint.position, checkpoint.code


def _leave_out(checkpoint: pb.Checkpoint, named: Container[str]) -> list[str]:
    """Removes objects with these names or ids from a checkpoint, and those that were made from them."""
    gone: set[str] = set()
    left, left_out = [], []
    for record in checkpoint.objects:
        kind = record.WhichOneof("made")
        handles = messages_in(getattr(record, kind), Handle) if kind else ()
        is_named = record.object_id in named or (record.name and record.name in named)
        if is_named or any(each.object_id in gone for each in handles):
            gone.add(record.object_id)
            left_out.append(_what(record))
        else:
            left.append(record)
    if gone:
        del checkpoint.objects[:]
        checkpoint.objects.extend(left)
    return left_out


def _newer(checkpoint: pb.Checkpoint, made: Iterable[HostedObject]) -> Iterator[tuple[torch.Tensor, int, int]]:
    """The rows of parameters that are as at a later position of the log: a parameter, their end, the position."""
    parameters = {each.ref.object_id: each.parameters for each in made}
    for piece in checkpoint.pieces:
        for rows in piece.rows:
            if rows.object_id in parameters:  # it may have been left out
                yield parameters[rows.object_id][rows.name], rows.end, piece.position


def put(engine: Engine, record: pb.ObjectRecord, source: Source) -> None:
    """Gives an object the state of its record, or makes it. Raises `CheckpointError`."""
    found = engine.registry.get(record.object_id)
    if found is not None and record.HasField("value"):
        _write(found, _value(engine, record, source))
    else:
        _fill(engine, found or _made(engine, record, source), record, source)


def _value(engine: Engine, record: pb.ObjectRecord, source: Source) -> Any:
    return mapped(source.load(record.value, record.tensors), lambda tensor: tensor.to(engine.device))


def _write(hosted: HostedObject, value: Any) -> None:
    """Gives a result that stays a later value. A tensor stays the same one: others may have it."""
    if hosted.is_tensor and hosted.value.shape == value.shape and hosted.value.dtype == value.dtype:
        with torch.no_grad():
            hosted.value.copy_(value)
    else:
        hosted.value = value


def _made(engine: Engine, record: pb.ObjectRecord, source: Source) -> HostedObject:
    account = Account(record.identity, record.namespace)
    try:
        kind = record.WhichOneof("made")
        if kind == "value":
            made = HostedObject(
                engine.name,
                _value(engine, record, source),
                engine.parameter_locks,
                record.name,
                object_id=record.object_id,
            )
            made.class_name, made.account = record.class_name, account
            return engine.registry.add(made)
        request = getattr(record, kind or "create")
        if record.dependency_only and kind != "call":
            request.name = ""  # another object may have the name by now
        ctx = RequestContext(engine, _NO_TRAINER, source.find(record.payload), made_for=account)
        with engine.registry.restoring():
            return remake(ctx, kind or "create", request, record.object_id)
    except Exception as error:  # constructors may raise anything
        raise CheckpointError(
            f"{_what(record)} cannot be made again: {error}. Import the modules that it was made with (--import), in "
            f"the same release of them, {_ways_out(record)}"
        ) from error


def _fill(engine: Engine, hosted: HostedObject, record: pb.ObjectRecord, source: Source) -> None:
    if not record.HasField("state"):
        return
    try:
        read = source.load_table if hosted.is_table else source.load
        load(hosted, read(record.state, record.tensors), record.version, engine.device)
        if isinstance(hosted.value, HostedOptimizer):
            policy = (
                from_plain(Decoder(PayloadReader(None)).decode(record.policy)) if record.HasField("policy") else PLAIN
            )
            hosted.value.told(record.beside)
            if record.curves:  # a record of the log has none, and leaves those that there are
                hosted.value.reported.restore(map(told_in, record.curves))
            rounds.restore(engine, hosted.value, policy, record.rounds, lambda of: source.load(of, record.tensors))
        if record.HasField("frozen"):
            freeze(hosted, set(record.frozen.parameters))
        if hosted.is_module:
            set_steps(hosted, record.steps)
    except Exception as error:  # a hosted load_state_dict may raise anything
        raise CheckpointError(
            f"the state of {_what(record)} does not fit its class: {error}. If the class has changed, start with the "
            f"release that wrote the state, {_ways_out(record)}"
        ) from error


def _ways_out(record: pb.ObjectRecord) -> str:
    return f"without it (--leave-out {record.name or record.object_id}), or with another data directory"


def _what(record: pb.ObjectRecord) -> str:
    return f"{record.class_name} {record.name!r}" if record.name else f"an anonymous {record.class_name}"


def _begin(engine: Engine, record: pb.SessionRecord, source: Source) -> None:
    session = engine.sessions.open(record.trainer, remembered(record.identity))
    session.taken_numbers = _numbers(record.taken)
    for reference in record.references:
        try:
            hosted = engine.registry.find(Ref(engine.name, reference.object_id))
        except StaleHandleError:
            continue  # the object was left out of the checkpoint
        if reference.count:
            engine.registry.grant(record.trainer, hosted, reference.count)
    for kept in record.answers:
        frame = Frame.FromString(kept.frame.SerializeToString())
        payload = source.find(kept.payload)
        chunks = [] if payload is None else [payload.data]
        nbytes = 0 if payload is None else len(payload)
        answer = Answer(frame, chunks, nbytes, list(frame.reply.granted))
        engine.reply_cache.record(record.trainer, kept.number, answer)


def _numbers(message: pb.NumberSet) -> SeenNumbers:
    return SeenNumbers.of(message.floor, message.above, message.holes)


def load(hosted: HostedObject, state: Any, version: int, device: torch.device = _CPU) -> None:
    """Loads a `state_dict` into an object constructed from the same arguments; an optimizer has its version, too.
    Buffers of a module that its constructor leaves None are on the `device`.

    Raises what the object's `load_state_dict` raises, most likely because its class has changed.
    """
    if isinstance(hosted.value, nn.Module):
        _load_module(hosted.value, state, device)
    elif isinstance(hosted.value, HostedOptimizer):
        _load_optimizer(hosted.value.optimizer, state)
        hosted.value.version = version
    else:
        hosted.value.load_state_dict(state)


def freeze(hosted: HostedObject, names: Set[str]) -> None:
    """Sets `requires_grad` to False on the parameters of a module that were frozen."""
    for name, parameter in hosted.parameters.items():
        if parameter.requires_grad == (name in names):
            parameter.requires_grad_(name not in names)


def _load_module(module: nn.Module, state: dict[str, Any], device: torch.device) -> None:
    names = module.state_dict().keys() | state.keys()
    # `load_state_dict` copies into the constructor's tensors; code may have replaced these since.
    set_buffers(module, {name: state.get(name) for name in names if _is_buffer(module, name)}, device)
    module.load_state_dict(state, strict=True)  # and reports what does not match


def _is_buffer(module: nn.Module, name: str) -> bool:
    path, _, leaf = name.rpartition(".")
    return leaf in part_of(module, path)._buffers


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    optimizer.load_state_dict(state)
    # Torch casts loaded state to the parameter's dtype, which would change master weights, for example.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, entries in state["state"].items():
        if isinstance(place, int) and place < len(parameters) and isinstance(entries, dict):
            own = optimizer.state[parameters[place]]
            for key, value in entries.items():
                if isinstance(value, torch.Tensor) and isinstance(own.get(key), torch.Tensor):
                    own[key] = value.to(own[key].device)
