"""Tests that the tables of the status show what the message holds, in readable form."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ps_service.cli.status_view import show, size
from ps_wire.v1.operations_pb2 import StatusReply


def shown(status: StatusReply) -> list[str]:
    """The lines of the output, with single blanks between the words."""
    out = io.StringIO()
    show(status, Console(file=out, width=120))
    lines = (line.translate(str.maketrans("│┃┏┓┗┛┡┩└┘━─┳╇┴┼", " " * 16)) for line in out.getvalue().splitlines())
    return [" ".join(line.split()) for line in lines if line.strip()]


def full() -> StatusReply:
    status = StatusReply(
        owner="ps0", version="1.2.3", uptime_seconds=3 * 3600 + 4 * 60 + 5.9, serving=True, parameters=1234567,
        bytes=5 << 20, sessions=3, connected_sessions=2, contexts=4, kept_answers=7, requests_in_flight=6,
        calls_per_second=12.34, threads=2, threads_waiting=1, threads_spare=16, resident_bytes=3 << 30,
    )  # fmt: skip
    status.objects.add(name="net", class_name="my.Net", parameters=1200000, bytes=4800000, references=2)
    status.objects.add(class_name="torch.nn.ReLU", references=1)
    status.optimizers.add(name="net.optimizer", class_name="torch.optim.SGD", parameters=1200000, version=98765)
    status.optimizers.add(class_name="torch.optim.Adam", parameters=1)
    status.operations.add(name="call", calls=2000, errors=3, seconds=5.0)
    status.operations.add(name="status")
    return status


def test_the_headline_names_the_owner_and_its_state() -> None:
    assert shown(full())[0] == "ps0 is serving, up 3:04:05, release 1.2.3"


def test_an_owner_that_drains_says_so() -> None:
    status = full()
    status.serving = False
    assert shown(status)[0].startswith("ps0 is draining, ")


def test_an_owner_without_threads_says_so() -> None:
    status = full()
    assert "compute threads 2 (1 waiting, 0 of at most 16 replaced)" in shown(status)
    status.stalled, status.threads_lost = True, 18
    assert shown(status)[0].startswith("ps0 is stalled: abandoned calls hold all of its threads, up ")
    assert "compute threads 2 (1 waiting, 18 of at most 16 replaced; stalled)" in shown(status)


def test_days_are_counted_in_hours() -> None:
    assert " up 100:00:00," in shown(StatusReply(uptime_seconds=360000))[0]


@pytest.mark.parametrize(
    "line",
    [
        "objects 2",
        "parameters 1,234,567",
        "bytes hosted 5.0 MiB",
        "sessions 3 (2 connected)",
        "contexts open 4",
        "requests in flight 6 (0 waiting for something else)",
        "answers kept 7",
        "calls per second 12.3",
        "memory of the process 3.0 GiB",
    ],
)
def test_every_number_has_a_line(line: str) -> None:
    assert line in shown(full())


def test_objects_have_a_table() -> None:
    lines = shown(full())
    at = lines.index("Objects")
    assert lines[at + 1] == "object class parameters bytes handles"
    assert lines[at + 2 : at + 4] == ["net my.Net 1,200,000 4.6 MiB 2", "(anonymous) torch.nn.ReLU 0 0 B 1"]


def test_optimizers_have_a_table_with_their_versions() -> None:
    lines = shown(full())
    at = lines.index("Optimizers")
    assert lines[at + 1] == "optimizer class parameters version"
    assert lines[at + 2] == "net.optimizer torch.optim.SGD 1,200,000 98,765"
    assert lines[at + 3] == "(anonymous) torch.optim.Adam 1 0"


def test_operations_have_a_table_with_their_mean_time() -> None:
    lines = shown(full())
    at = lines.index("Operations")
    assert lines[at + 1] == "operation calls errors mean"
    assert lines[at + 2 : at + 4] == ["call 2,000 3 2.50 ms", "status 0 0 0.00 ms"]


def test_tables_without_rows_are_left_out() -> None:
    lines = shown(StatusReply(owner="ps0"))
    assert not {"Objects", "Optimizers", "Operations"} & set(lines)
    assert "objects 0" in lines


def test_names_are_not_taken_for_markup() -> None:
    status = StatusReply(owner="[red]ps0")
    status.objects.add(name="[bold]net[/bold]", class_name="my.Net")
    lines = shown(status)
    assert lines[0].startswith("[red]ps0 is ")
    assert any(line.startswith("[bold]net[/bold] my.Net") for line in lines)


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
