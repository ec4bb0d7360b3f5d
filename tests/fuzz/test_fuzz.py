"""Cases that the fuzzer has found or made are read again: what was wrong once stays right. `make fuzz` makes others."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ps_service.durability.log import records
from ps_service.durability.manifest import NAME, DamagedError, Manifest
from ps_service.durability.store import STATE
from ps_wire.v1 import checkpoint_pb2 as pb
from ps_wire.v1.frames_pb2 import Frame
from tests.fuzz.cases import Case, Finding, load, save
from tests.fuzz.mutations import change, made
from tests.fuzz.recording import Recording
from tests.fuzz.targets.files import Checkpoints, Logs, Manifests, trained
from tests.fuzz.targets.requests import Requests
from tests.fuzz.targets.target import Reader, only
from tests.fuzz.targets.wire import Compression, Frames, Options, Records, Values

NOTHING = Recording(b"", [])
READERS: list[Callable[[Recording], Reader]] = [Frames, Records, Values, Options, Compression, Requests]
CORPUS = sorted(Path(__file__).with_name("corpus").glob("*.json"))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_a_case_is_read_or_refused(path: Path) -> None:
    cases = load(path)
    made_by = next(each for each in READERS if each.name == cases[0].target)  # type: ignore[attr-defined]
    with closing(made_by(NOTHING)) as reader:
        for each in cases:
            reader.read(each)


def test_a_finding_is_saved_with_all_that_is_needed_to_send_it_again(tmp_path: Path) -> None:
    cases = [Case("frames", [b"\0\xff", b""], {"seed": "7"}), Case("records", [])]
    assert load(save(tmp_path / "found" / "1.json", cases, "it ended")) == cases


def test_only_what_is_expected_passes() -> None:
    with only(ValueError):
        raise ValueError
    with pytest.raises(Finding, match="KeyError"), only(ValueError):
        raise KeyError("name")


def test_messages_are_changed_in_any_field_and_stay_messages() -> None:
    chance = random.Random(1)
    found, wanted = set(), {True, "hello", "request", "reply", "part", "cancel", "batch"}
    for tried in range(10_000):
        if tried >= 300 and wanted <= found:
            break
        frame = made(Frame.DESCRIPTOR, chance, 3)
        before = frame.SerializeToString(deterministic=True)
        change(frame, chance)
        assert Frame.FromString(frame.SerializeToString()) is not None
        found.add(before != frame.SerializeToString(deterministic=True))
        found.add(frame.WhichOneof("body"))
    assert wanted <= found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a checkpoint and a log behind it."""
    folder = tmp_path_factory.mktemp("fuzz") / "ps0"
    asyncio.run(trained(folder))
    return folder


@pytest.fixture
def checkpoints(directory: Path) -> Iterator[Checkpoints]:
    with closing(Checkpoints(directory)) as reader:
        yield reader


def many_references(state: pb.Checkpoint) -> None:
    state.sessions[0].references[0].count = 2**62  # once a loop of as many turns


def odd_generator(state: pb.Checkpoint) -> None:
    state.generator = b"short"


def unknown_rows(state: pb.Checkpoint) -> None:
    state.pieces[0].rows[0].name = "no.parameter"


def unknown_payload(state: pb.Checkpoint) -> None:
    state.sessions[0].answers[0].payload = "no tensor"


def unknown_value(state: pb.Checkpoint) -> None:
    state.objects[0].state.Clear()
    state.objects[0].state.SetInParent()


@pytest.mark.parametrize(
    "damage",
    [many_references, odd_generator, unknown_rows, unknown_payload, unknown_value],
    ids=lambda each: each.__name__,
)
def test_a_checkpoint_that_says_what_no_owner_writes_is_refused(
    checkpoints: Checkpoints, directory: Path, damage: Callable[[pb.Checkpoint], None]
) -> None:
    state = pb.Checkpoint.FromString((directory / "checkpoint-000001" / STATE).read_bytes())
    damage(state)
    checkpoints.read(Case("checkpoint", [state.SerializeToString()]))


def no_operation(message: pb.LogRecord) -> None:
    message.effects.add().again.SetInParent()


def odd_state(message: pb.LogRecord) -> None:
    message.generator = b"short"


@pytest.mark.parametrize(
    "damage", [no_operation, odd_state, None], ids=lambda each: each.__name__ if each else "no message"
)
def test_a_log_that_says_what_no_owner_writes_is_refused(
    directory: Path, damage: Callable[[pb.LogRecord], None] | None
) -> None:
    content = bytearray((directory / f"log-{0:020}").read_bytes())
    last = list(records.read(memoryview(bytes(content)), 0))[-1]
    message = pb.LogRecord.FromString(last.message)
    if damage is not None:
        damage(message)
    data = b"\xff" if damage is None else message.SerializeToString()
    body = data + bytes(last.payload)
    content[last.position :] = records.header(last.position, last.synced, len(data), memoryview(body)) + body
    with closing(Logs(directory)) as reader:
        reader.read(Case("log", [bytes(content)]))


WRONG: list[tuple[str, Any]] = [
    *(("format", None), ("written", None), ("written", 1), ("written", "today"), ("written", "2026-01-01T00:00:00")),
    *(("owner", None), ("owner", 1), ("incarnations", 1), ("incarnations", [1]), ("files", []), ("files", {"a": 1})),
    *(("files", {"a": {"bytes": "1", "blake2b": ""}}), ("files", {"a/../b": {"bytes": 1, "blake2b": ""}})),
    *(("objects", 1), ("left_out", [1]), ("left_out", [{}]), ("more", 1)),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_a_manifest_that_says_something_else_is_damaged(directory: Path, name: str, value: Any) -> None:
    with closing(Manifests(directory)) as reader:
        content = json.loads((directory / "checkpoint-000001" / NAME).read_bytes())
        del content["blake2b"]
        content[name] = value
        if value is None:
            del content[name]
        digest = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=32).hexdigest()
        written = json.dumps({"blake2b": digest, **content}).encode()
        reader.read(Case("manifest", [written]))
        with pytest.raises((DamagedError, ValueError)):
            Manifest.read(reader._checkpoint_in(reader._folder))


def test_what_was_not_changed_is_read(checkpoints: Checkpoints, directory: Path) -> None:
    checkpoints.read(Case("checkpoint", [(directory / "checkpoint-000001" / STATE).read_bytes()]))
