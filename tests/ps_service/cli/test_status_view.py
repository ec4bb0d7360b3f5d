"""Tests that the tables of the status show what an owner tells, in readable form, in 80 columns."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ps_service.cli import status_view, watching
from ps_service.cli.probe import GroupStatus, Missing
from ps_service.cli.units import brief, milliseconds, rate, size
from ps_wire.errors import UnavailableError
from ps_wire.status import OwnerStatus
from ps_wire.v1.operations_pb2 import StatusReply

LONG = "a-name-that-somebody-has-chosen-and-that-is-far-longer-than-any-column." * 3


def printed(message: StatusReply, width: int = 80, **more: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(status_view.view(OwnerStatus.from_message(message), **more))
    return out.getvalue()


def shown(message: StatusReply, **more: Any) -> list[str]:
    """The lines of the output, with single blanks between the words, and without rules."""
    lines = (" ".join(line.replace("─", " ").split()) for line in printed(message, **more).splitlines())
    return [line for line in lines if line]


def full() -> StatusReply:
    status = StatusReply(
        owner="ps0", version="1.2.3", uptime_seconds=3 * 3600 + 4 * 60 + 5.9, serving=True, parameters=1234567,
        bytes=5 << 20, sessions=3, connected_sessions=2, contexts=4, kept_answers=7, requests_in_flight=6,
        calls_per_second=12.34, threads=2, threads_waiting=1, threads_spare=16, resident_bytes=3 << 30,
        state="serving", process_id=42, host_name="gpu-3", device="cuda:0", objects_hosted=4, optimizers_hosted=2,
        kinds={"module": 2, "table": 0}, steps_per_second=0.25, members_known=1, tables_hosted=1,
        communicators_open=1,
    )  # fmt: skip
    status.trainers.add(
        id="0a", program="train.py", process_id=7, host_name="gpu-1", connected=True, age_seconds=7600, steps=12345,
        steps_per_second=120.0, requests_in_flight=3, request_bytes=1 << 20, last_seen_seconds=0.25,
    )  # fmt: skip
    status.trainers.add(
        id="0b", member="worker1", age_seconds=90, away_seconds=12, steps=3, steps_per_second=12.0, last_seen_seconds=40
    )
    status.objects.add(name="net", class_name="my.Net", parameters=1200000, bytes=4800000, references=2)
    status.objects.add(class_name="torch.nn.ReLU", references=1)
    status.optimizers.add(
        name="net.optimizer", class_name="torch.optim.sgd.SGD", version=98765, lr=[0.1, 0.1, 0.001],
        steps_per_second=0.25, staleness_p50=1, staleness_p99=7, policy="Sync(trainers=2)", members=2,
        waiting_for=["0b (worker1)"],
    )  # fmt: skip
    status.optimizers.add(class_name="my.Own", version=0)
    status.quotas.add(section="identity.anna", name="object_bytes", used=95 << 20, quota=100 << 20)
    status.quotas.add(section="identity.anna", name="sessions", used=3)
    status.quotas.add(section="all", name="compute_per_second", used=0.25, quota=2)
    status.tables.add(
        name="items", rows=5000, bytes=1 << 20, dim=64, updates=9, expired=2, evicted=30, removed=100,
        looked_up=8000, added=1000, refused=3000, missing=400, gradients=500, updated=50,
    )  # fmt: skip
    status.passes.add(id="0a/3", age_seconds=3700, unused_seconds=61)
    status.passes.add(id="0a/4", age_seconds=1, requests_in_flight=1)
    status.communicators.add(name="both", size=2, members=2, open=1, waiting_for=["rank 1 (trainer 0b)"])
    status.memory.add(kind="process", bytes=3 << 30, budget_bytes=6 << 30)
    status.memory.add(kind="contexts", bytes=3 << 20, budget_bytes=4 << 20, largest_bytes=1 << 20)
    status.memory.add(kind="shared_memory", bytes=1)
    status.memory.add(kind="waiting")
    status.members.add(name="ps0", address="10.0.0.1:50051", id=0, away=True)
    status.operations.add(name="call", calls=2000, errors=3, seconds=5.0, p50_seconds=0.002, p99_seconds=1.5)
    status.events.add(number=1, time_seconds=0, text="trainer 0c is lost", level="warning")
    return status


def test_the_headline_names_the_owner_and_its_state() -> None:
    assert shown(full())[:2] == ["ps0 is serving, up 3:04:05, release 1.2.3", "process 42 on gpu-3, modules on cuda:0"]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("draining", "ps0 is draining, up "),
        ("stalled", "ps0 is stalled: abandoned calls hold all of its threads, up "),
        ("a state of a later release", "ps0 is a state of a later release, up "),
    ],
)
def test_an_owner_tells_its_state(state: str, text: str) -> None:
    status = full()
    status.state = state
    assert shown(status)[0].startswith(text)


def test_days_are_counted_in_hours() -> None:
    assert " up 100:00:00," in shown(StatusReply(uptime_seconds=360000))[0]


def test_every_number_has_a_line() -> None:
    assert {
        "objects 4 (module: 2)",
        "parameters 1,234,567, 5.0 MiB with buffers",
        "sessions 3 (2 connected)",
        "contexts open 4",
        "requests in flight 6 (0 waiting for something else)",
        "compute threads 2 (1 waiting, 0 of at most 16 replaced)",
        "answers kept 7",
        "calls per second 12.3",
        "steps per second 0.25",
    } - set(shown(full())) == set()


TABLES = {
    "Trainers": [
        "trainer since steps steps/s seen flying holds",
        "train.py[7] gpu-1 2.1 h 12,345 120 0.2 s 3 1.0 MiB",
        "worker1 away 12 s 1.5 min 3 12.0 40 s 0 0 B",
        "and 1 more",
    ],
    "Optimizers": [
        "optimizer class lr version steps/s stale",
        "net.optimizer SGD 0.1, 0.001 98,765 0.25 1/7",
        "(anonymous) Own - 0 0 -",
        "net.optimizer: Sync(trainers=2), 2 trainers",
        "net.optimizer waits for 0b (worker1)",
    ],
    "Objects": [
        "object class parameters bytes handles",
        "net my.Net 1,200,000 4.6 MiB 2",
        "(anonymous) torch.nn.ReLU 0 0 B 1",
    ],
    "Tables": ["table rows width bytes updates", "items 5,000 64 1.0 MiB 9"],
    "Look-ups in tables": ["table ids hits admitted unique rows gone", "items 8,000 45.0% 25.0% 10.0% 132"],
    "Open passes": [
        "pass age unused for requests",
        "0a/3 1 h 1 min 1 min 1 s 0",
        "0a/4 1.0 s in use 1",
        "and 2 more",
    ],
    "Communicators": ["communicator members of open bytes", "both 2 2 1 0 B", "both waits for rank 1 (trainer 0b)"],
    "Quotas": [
        "of quota used of at most share",
        "identity.anna object_bytes 95.0 MiB 100.0 MiB 95%",
        "all compute_per_second 0.25 2 12%",
    ],
    "Memory": [
        "kind bytes of at most share",
        "process 3.0 GiB 6.0 GiB 50%",
        "contexts 3.0 MiB 4.0 MiB each 25%",
        "shared memory 1 B - -",
    ],
    "Directory": ["member address number", "ps0 away 10.0.0.1:50051 0"],
    "Operations": ["operation calls errors mean p50 p99", "call 2,000 3 2.50 ms 2.00 ms 1,500 ms"],
}


def test_every_list_has_a_table() -> None:
    found = shown(full())
    for title, expected in TABLES.items():
        at = found.index(title) + 1
        assert found[at : at + len(expected)] == expected, title


def test_events_have_a_time_and_a_text() -> None:
    assert shown(full())[-1].endswith(" trainer 0c is lost")


def test_tables_without_rows_are_left_out() -> None:
    lines = shown(StatusReply(owner="ps0"))
    assert not {*TABLES, "Events"} & set(lines)
    assert "objects 0" in lines


def test_rows_have_a_bound_which_is_told() -> None:
    status = StatusReply(objects_hosted=10_000)
    for number in range(1000):
        status.objects.add(name=f"object{number}", class_name="my.Net")
    lines = shown(status, most=5)
    assert [each for each in lines if each.startswith("object")][-1].startswith("object4 ")
    assert "and 9,995 more" in lines


def test_names_are_not_taken_for_markup() -> None:
    status = StatusReply(owner="[red]ps0")
    status.objects.add(name="[bold]net[/bold]", class_name="my.Net")
    status.trainers.add(program="[blink]x", process_id=1, connected=True)
    lines = shown(status)
    assert lines[0].startswith("[red]ps0 is ")
    assert any(line.startswith("[bold]net[/bold] my.Net") for line in lines)
    assert any(line.startswith("[blink]x[1] ") for line in lines)


def test_long_names_are_whole_and_lines_fit() -> None:
    status = full()
    status.objects[0].name = status.optimizers[0].name = status.trainers[1].member = LONG
    status.objects[0].class_name = status.tables[0].name = status.communicators[0].name = status.members[0].name = LONG
    text = printed(status)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for piece in ("train.py[7]", "12,345", "98,765", "1,200,000", "5,000", "10.0.0.1:50051"):
        assert piece in text, f"{piece} is cut"
    narrow = "".join(text.split())
    for start in range(0, len(LONG) - 8, 8):
        assert LONG[start : start + 4] in narrow


def test_a_group_has_a_line_for_each_owner_and_tells_who_is_missing() -> None:
    owners = (OwnerStatus.from_message(full()), OwnerStatus.from_message(StatusReply(owner="ps1", state="draining")))
    group = GroupStatus(owners, (Missing("ps2", "10.0.0.3:1", "no owner answers"),))
    out = io.StringIO()
    Console(file=out, width=80).print(status_view.group_view(group))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "ps0 serving 2/3 0.25 12.3 1,234,567 3.0 GiB" in lines
    assert "ps1 draining 0/0 0 0 0 0 B" in lines
    assert "ps2 at 10.0.0.3:1: no owner answers" in lines
    assert any(line.startswith("ps1 is draining, ") for line in lines)
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert [each["owner"] for each in group.as_plain()["owners"]] == ["ps0", "ps1"]
    assert group.as_plain()["missing"] == [{"name": "ps2", "address": "10.0.0.3:1", "why": "no owner answers"}]


def crowded(rows: int = 130) -> StatusReply:
    """As `full`, with many of all."""
    status = full()
    for each in (
        status.trainers,
        status.objects,
        status.optimizers,
        status.tables,
        status.passes,
        status.communicators,
    ):
        first = each[0]
        for number in range(rows):
            more = each.add()
            more.CopyFrom(first)
            if hasattr(more, "name"):
                more.name = f"{first.name}{number}"
    status.sessions = status.objects_hosted = status.tables_hosted = status.contexts = rows + 10
    status.optimizers_hosted = status.communicators_open = rows + 1
    for number in range(30):
        status.operations.add(name=f"operation{number}", calls=1)
        status.events.add(number=2 + number, text=f"event {number}")
    return status


TITLES = (
    *("Trainers", "Optimizers", "Objects", "Tables", "Look-ups in tables", "Open passes", "Communicators", "Memory"),
    *("Directory", "Operations", "Events"),
)


@pytest.mark.parametrize("status", [full(), crowded()], ids=["few rows", "many rows"])
@pytest.mark.parametrize("height", [24, 40, 60, 120])
def test_a_watched_status_shares_the_height_of_the_terminal(status: StatusReply, height: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, height=height, force_terminal=True, color_system=None)
    console.print(status_view.fitted(OwnerStatus.from_message(status)))
    lines = out.getvalue().splitlines()
    assert len(lines) < height
    for title in TITLES:
        assert [line for line in lines if line.strip().startswith(title)], title
    if height >= 60 and len(status.tables) > 1:
        assert sum(line.startswith("and ") and line.rstrip().endswith(" more") for line in lines) >= 5
    assert lines[0].startswith("ps0 is serving")


def test_a_watched_status_shows_all_of_it_where_there_is_room() -> None:
    out = io.StringIO()
    Console(file=out, width=80, height=200, color_system=None).print(
        status_view.fitted(OwnerStatus.from_message(full()))
    )
    assert [" ".join(line.split()) for line in printed(full()).splitlines() if line.strip()] == [
        " ".join(line.split()) for line in out.getvalue().splitlines() if line.strip()
    ]


class Terminal:
    """Shows answers in turn; then comes Ctrl-C."""

    def __init__(self, *answers: str | UnavailableError) -> None:
        self.answers = list(answers)
        self.out = io.StringIO()
        self.console = Console(file=self.out, width=80, force_terminal=True, color_system=None)

    def view(self) -> str:
        answer = self.answers.pop(0)
        if isinstance(answer, UnavailableError):
            raise answer
        return answer

    def wait(self, seconds: float) -> None:
        if not self.answers:
            raise KeyboardInterrupt

    def watch(self) -> str:
        watching.watch(self.view, 2.0, self.console, self.wait, screen=False)
        return self.out.getvalue()


def test_watching_shows_every_answer_in_place() -> None:
    text = Terminal("first", "second").watch()
    assert text.index("first") < text.index("second")
    assert "\x1b[2K" in text, "the line before is erased"


def test_watching_goes_on_while_an_owner_does_not_answer() -> None:
    text = Terminal("first", UnavailableError("it is away"), "second").watch()
    assert "no answer for 0.0 s: it is away" in text
    assert text.index("first") < text.index("it is away") < text.index("second")


def test_watching_ends_if_there_never_was_an_answer() -> None:
    with pytest.raises(UnavailableError):
        Terminal(UnavailableError("nobody")).watch()


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (int(2.5 * (1 << 30)), "2.5 GiB"),
        (1 << 40, "1.0 TiB"),
        (1 << 52, "4096.0 TiB"),
    ],
)
def test_sizes_are_for_people(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (59, "59 s"), (90, "1.5 min"), (7200, "2.0 h"), (86400, "1.0 d"), (1e8, "1157 d")],
)
def test_brief_durations_have_one_unit(seconds: float, text: str) -> None:
    assert brief(seconds) == text


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(0, "0"), (0.0021, "2.1e-03"), (0.25, "0.25"), (12.34, "12.3"), (99.94, "99.9"), (12345.6, "12,346")],
)
def test_rates_tell_two_digits(per_second: float, text: str) -> None:
    assert rate(per_second) == text


def test_durations_of_requests_are_in_milliseconds() -> None:
    assert (milliseconds(0.00025), milliseconds(12.5)) == ("0.25 ms", "12,500 ms")


def test_an_owner_that_does_not_train_is_no_trainer() -> None:
    first, second = (StatusReply(owner=name, sessions=3, connected_sessions=2) for name in ("ps0", "ps1"))
    for status in (first, second):
        status.trainers.add(id="0a", member="ps0", connected=True)
        status.trainers.add(id="0b", member="ps1", steps=5 if status is second else 0)
        status.trainers.add(id="0c", member="reader", connected=True)
    group = GroupStatus((OwnerStatus.from_message(first), OwnerStatus.from_message(second)))
    out = io.StringIO()
    Console(file=out, width=80).print(status_view.group_view(group))
    lines = [line.split() for line in out.getvalue().splitlines() if line.strip()]
    assert [line[1] for line in lines if line[0] in ("ps0", "ps1") and "/" in line[1]] == ["1/1", "1/2"]
    rows = [line[0] for line in lines if len(line) > 8 and line[0] in ("ps0", "ps1", "reader")]
    assert rows == ["reader", "ps1", "reader"]
