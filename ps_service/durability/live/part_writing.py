"""Writes parameters, with what optimizers keep for them, piece by piece into files of their own."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from ps_service.durability.live.parts import (
    PIECE_BYTES,
    Copies,
    Mark,
    Part,
    Scratch,
    is_divisible,
    objects_of,
    pieces_of,
    room_for,
    visible,
)
from ps_service.durability.live.reuse import Written
from ps_service.durability.live.slots import Stored, only_item, stored
from ps_service.durability.live.tensor_files import Described, Sink
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence

    from ps_service.durability.live.begin import Beginning
    from ps_service.durability.live.quiescence import Quiescence
    from ps_service.durability.live.reuse import Reused
    from ps_service.durability.live.slots import SlottedStorage
    from ps_service.durability.live.tensor_files import TensorFiles
    from ps_service.durability.value_files import Tensors
    from ps_service.engine import Engine

Values = dict[tuple[int, int], Stored]
"""The values of parts by their place in a piece and -1, and what optimizers keep for them by that of the optimizer
among those that step the part."""

_VALUE: Final = -1

_ATTEMPTS: Final = 3
"""How often a large part is begun whose optimizers are loaded or make their first step meanwhile."""


class MadeMeanwhileError(Exception):
    """An optimizer was made while the checkpoint was written, and has stepped what that does not have yet."""


class PartWriter:
    """Writes the parts of the objects of a checkpoint. Then `pieces` has their positions."""

    def __init__(
        self, engine: Engine, still: Quiescence, files: TensorFiles, storage: SlottedStorage, reused: Reused
    ) -> None:
        self._engine = engine
        self._still = still
        self._files = files
        self._storage = storage
        self._reused = reused
        self._scratch = Scratch()
        self._scratch.reserve(PIECE_BYTES)
        self._known: dict[int, HostedOptimizer] = {}
        self.pieces: list[pb.PieceRecord] = []

    def write(self, beginning: Beginning, kept: set[str]) -> Iterator[None]:
        """Writes the parts of the objects with these ids, one piece at each turn. Raises `MadeMeanwhileError`."""
        self._known = {each.number: each for each in beginning.optimizers()}
        for part in beginning.parts.values():
            part.names = [each for each in part.names if each[0] in kept]
        wanted = {key: part for key, part in beginning.parts.items() if part.names}
        if whole := [copies for key, copies in beginning.whole.items() if key in wanted]:
            self._put([each.part for each in whole], self._write_copies(whole)[1])
            yield
        for piece in pieces_of(part for key, part in wanted.items() if key not in beginning.whole):
            rows = piece[0].rows_at_once() if len(piece) == 1 and piece[0].nbytes > PIECE_BYTES else 0
            yield from self._write_rows(piece[0], rows) if rows else self._write_piece(piece)
        for number, slot in self._storage.states.items():
            slot.sort(_order(self._known[number]))

    def _write_piece(self, piece: Sequence[Part]) -> Iterator[None]:
        """Writes parts that are read together."""
        self._scratch.reserve(room_for(piece))
        earlier = self._reused.earlier.written.get(_key(piece))
        with self._held(piece) as position:
            mark, copies = Mark(piece), None
            is_same = earlier is not None and _holds(earlier, piece)
            if not is_same:
                copies = [self._scratch.copies(each, visible(self._engine, each)) for each in piece]
        if earlier is not None and is_same and self._link(piece, earlier):
            yield
            return
        if copies is None:
            with self._held(piece) as position:
                mark = Mark(piece)
                copies = [self._scratch.copies(each, visible(self._engine, each)) for each in piece]
        self._forget(earlier)
        self._note(position, piece)
        name, values = self._write_copies(copies)
        self._put(piece, values)
        self._reused.written[_key(piece)] = Written(mark, name, values)
        yield

    def _write_rows(self, part: Part, rows: int) -> Iterator[None]:
        """Writes a large part, some rows at a time."""
        earlier = self._reused.earlier.written.get(_key([part]))
        with self._held([part]):
            is_same = earlier is not None and _holds(earlier, [part])
        if earlier is not None and is_same and self._link([part], earlier):
            yield
            return
        self._forget(earlier)
        for _ in range(_ATTEMPTS):
            if (yield from self._all_rows(part, rows)):
                return
        yield from self._write_piece([part])

    def _all_rows(self, part: Part, rows: int) -> Generator[None, None, bool]:
        """Writes a part, some rows at a time. Its value is whether what optimizers keep for it had the same form all
        the time."""
        count, begin, positions = part.parameter.shape[0], 0, []
        form, file = None, None
        try:
            while begin < count:
                end = min(begin + rows, count)
                self._scratch.reserve(PIECE_BYTES)
                with self._held([part]) as position:
                    if form is None:
                        form = self._form(part)
                    elif not form.holds(part):
                        self._files.names.release(form.names())
                        return False
                    copies = self._rows(part, begin, end)
                if file is None:
                    form.file, file = self._files.create(form.tensors)
                for described, copy in zip(form.tensors, copies, strict=True):
                    if copy is not None:
                        file.write(described.name, copy, begin * copy[0].nbytes if copy.dim() else 0)
                positions.append((position, end))
                begin = end
                yield
            assert form is not None and file is not None
            file.close()
        finally:
            if form is not None and file is not None:
                file.abandon()
                if begin < count:
                    (self._files.folder / form.file).unlink()
        for position, end in positions:
            self._note(position, [part], 0 if end == count else end)
        self._put([part], form.values)
        self._reused.written[_key([part])] = Written(form.mark, form.file, form.values)
        return True

    def _form(self, part: Part) -> _Form:
        """What a part consists of. Nothing refers to its memory afterwards: a step would move it."""
        entries = [(place, part.entry(optimizer)) for place, (optimizer, _) in enumerate(part.users)]
        states = {place: dict(entry) for place, entry in entries if entry is not None}
        sink = Sink(self._files.names)
        values = self._stored([Copies(part, visible(self._engine, part), states)], sink)
        tensors = [Described(name, each.dtype, each.shape) for name, each in sink.tensors]
        return _Form(Mark([part]), values, tensors, part.tensors()[1:])

    def _rows(self, part: Part, begin: int, end: int) -> list[torch.Tensor | None]:
        """Copies of some rows of a part's tensors; of numbers with the first rows, and then None."""
        tensors = [visible(self._engine, part), *part.tensors()[1:]]
        return [
            self._scratch.copy(each[begin:end]) if each.dim() else None if begin else self._scratch.copy(each)
            for each in tensors
        ]

    @contextmanager
    def _held(self, piece: Sequence[Part]) -> Iterator[int]:
        """Has nobody step some parts while a block runs; gives it the end of the log."""
        wanted = {id(each.parameter) for each in piece}
        while True:
            optimizers = self._optimizers()
            users = [each for each in optimizers.values() if not wanted.isdisjoint(map(id, each.parameters))]
            with self._still.held(users) as position:
                if self._optimizers().keys() <= optimizers.keys():
                    for each in users:
                        if each.number not in self._known:
                            _check(each, piece)
                    yield position
                    return

    def _optimizers(self) -> dict[int, HostedOptimizer]:
        """The optimizers of the checkpoint, and those that were made since, by their numbers."""
        there = (each.value for each in objects_of(self._engine) if isinstance(each.value, HostedOptimizer))
        return self._known | {each.number: each for each in there}

    def _note(self, position: int, piece: Sequence[Part], end: int = 0) -> None:
        rows = [pb.RowsRecord(object_id=each.names[0][0], name=each.names[0][1], end=end) for each in piece]
        self.pieces.append(pb.PieceRecord(position=position, rows=rows))

    def _write_copies(self, copies: Sequence[Copies]) -> tuple[str, Values]:
        """Writes copies into a file of their own; returns its name and the values."""
        sink = Sink(self._files.names)
        values = self._stored(copies, sink)
        return self._files.write(sink.tensors), values

    def _stored(self, copies: Sequence[Copies], tensors: Tensors) -> Values:
        values: Values = {}
        for i, each in enumerate(copies):
            slot = self._storage.values[id(each.part.parameter)][0]
            values[i, _VALUE] = only_item(stored({slot.key: each.value}, tensors, slot.prefix))
            for place, (optimizer, at) in enumerate(each.part.users):
                states = self._storage.states.get(optimizer.number)
                if states is not None and (entry := each.states.get(place)) is not None:
                    values[i, place] = only_item(only_item(stored({"state": {at: entry}}, tensors, states.prefix)))
        return values

    def _put(self, piece: Sequence[Part], values: Mapping[tuple[int, int], Stored]) -> None:
        """Puts values into the records."""
        for (i, place), value in values.items():
            part = piece[i]
            if place == _VALUE:
                for slot in self._storage.values[id(part.parameter)]:
                    value.put(slot.message, slot.names)
            else:
                optimizer, at = part.users[place]
                self._storage.states[optimizer.number].put(at, value)

    def _link(self, piece: Sequence[Part], earlier: Written) -> bool:
        """Uses the file of the checkpoint before, which has these parts as they are. False if that cannot be done."""
        if not self._reused.link(_key(piece), earlier, self._files):
            return False
        self._put(piece, earlier.values)
        return True

    def _forget(self, earlier: Written | None) -> None:
        if earlier is not None:
            self._files.names.release(earlier.names())


@dataclass
class _Form:
    """A large part: what it is in records, its tensors, of which optimizers keep some, and the file that has them."""

    mark: Mark
    values: Values
    tensors: list[Described]
    kept: list[torch.Tensor]
    file: str = ""

    def holds(self, part: Part) -> bool:
        """Whether optimizers keep the same tensors."""
        now = part.tensors()[1:]
        return len(now) == len(self.kept) and all(one is other for one, other in zip(now, self.kept, strict=True))

    def names(self) -> Iterator[str]:
        """The names of the tensors."""
        return (each.name for each in self.tensors)


def _holds(earlier: Written, piece: Sequence[Part]) -> bool:
    return isinstance(earlier.mark, Mark) and earlier.mark.holds(piece)


def _key(piece: Sequence[Part]) -> Hashable:
    return tuple(each.names[0] for each in piece)


def _check(optimizer: HostedOptimizer, piece: Sequence[Part]) -> None:
    """Raises `MadeMeanwhileError` if an optimizer that the checkpoint does not have keeps something for parts that are
    read only now: it could not be told how that was when it was made."""
    kept = (optimizer.optimizer.state.get(each.parameter, {}).values() for each in piece)
    if (optimizer.version and not is_divisible(optimizer)) or any(
        isinstance(value, torch.Tensor) for entry in kept for value in entry
    ):
        raise MadeMeanwhileError


def _order(optimizer: HostedOptimizer) -> list[int]:
    """The places of parameters in the order in which an optimizer has what it keeps for them."""
    places = {id(each): place for place, each in enumerate(optimizer.parameters)}
    return [places[id(each)] for each in list(optimizer.optimizer.state) if id(each) in places]
