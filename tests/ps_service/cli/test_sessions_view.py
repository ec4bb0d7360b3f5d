"""Tests that the tables of sessions and contexts show what the message holds, in readable form."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ps_service.cli.status_view import show_sessions
from ps_service.cli.units import duration
from ps_wire.v1.operations_pb2 import SessionsReply


def shown(reply: SessionsReply) -> list[str]:
    """The lines of the output at 80 columns, with single blanks between the words."""
    out = io.StringIO()
    show_sessions(reply, Console(file=out, width=80))
    lines = (line.replace("─", " ") for line in out.getvalue().splitlines())
    return [" ".join(line.split()) for line in lines if line.strip()]


def full() -> SessionsReply:
    reply = SessionsReply(owner="ps0", open_contexts=1002)
    reply.sessions.add(
        id="0123abcd", transport="shared_memory", peer="process 77", connected=True, age_seconds=3700, contexts=2,
        oldest_context_seconds=61, requests_in_flight=3, request_bytes=1 << 20, waiting_bytes=2 << 20,
        answer_bytes=3 << 20, context_bytes=4 << 20, references=5,
    )  # fmt: skip
    reply.sessions.add(id="00000000~2", transport="unary", peer="[::1]:5", away_seconds=12.5, age_seconds=100000)
    reply.contexts.add(id="0123abcd/7", age_seconds=61, unused_seconds=5.25, sessions=["0123abcd", "00000000~2"])
    reply.contexts.add(id="0123abcd/9", age_seconds=3, requests_in_flight=1, sessions=["0123abcd"])
    return reply


def test_sessions_have_a_table() -> None:
    lines = shown(full())
    assert lines[0] == "ps0: 2 sessions, 1002 open contexts"
    assert lines[1:3] == ["Sessions", "session from over age open busy holds refs"]
    assert lines[3] == "0123abcd process 77 memory 1.0 h 2 3 10.0 MiB 5"
    assert lines[4] == "00000000~2 [::1]:5 away 12 s 1.2 d 0 0 0 B 0"


def wide() -> SessionsReply:
    """Sessions with what is wide in each column."""
    reply = SessionsReply(owner="ps0", open_contexts=1)
    for transport in ("shared_memory", "direct", "grpc", "unary"):
        reply.sessions.add(
            id="0123abcd", transport=transport, peer="192.168.110.120:50051", connected=True, age_seconds=99 * 60,
            contexts=123, requests_in_flight=16, context_bytes=1000 << 20, references=1234,
        )  # fmt: skip
    reply.sessions.add(id="0123abcd", peer="process 1234567", away_seconds=25, age_seconds=99 * 60, references=12)
    reply.contexts.add(id="0123abcd/123456", age_seconds=5900, unused_seconds=5900, sessions=["0123abcd", "01234567"])
    return reply


def test_each_session_and_context_has_one_line_in_80_columns() -> None:
    out = io.StringIO()
    show_sessions(wide(), Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert len(lines) == 1 + 3 + 5 + 3 + 1
    assert max(map(len, lines)) <= 80
    assert lines[4] == "0123abcd  192.168.110.120:50051  memory     1.6 h   123    16  1000.0 MiB  1234"


def test_what_is_piped_has_one_line_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    reply = wide()
    reply.sessions[0].peer = "[2001:db8:85a3:aaaa:bbbb:8a2e:370:7334]:50051"
    show_sessions(reply)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 3 + 5 + 3 + 1
    assert reply.sessions[0].peer in lines[4]


def test_nothing_is_cut() -> None:
    assert not any("…" in line for line in shown(full())[:-1])


def test_contexts_have_a_table() -> None:
    lines = shown(full())
    at = lines.index("Contexts")
    assert lines[at + 1] == "context sessions age unused for requests"
    assert lines[at + 2] == "0123abcd/7 0123abcd, 00000000~2 1.0 min 5.2 s 0"
    assert lines[at + 3] == "0123abcd/9 0123abcd 3.0 s in use 1"
    assert lines[-1] == "… and 1,000 contexts that were used more recently"


def test_an_owner_without_trainers_has_no_tables() -> None:
    assert shown(SessionsReply(owner="ps0")) == ["ps0: 0 sessions, 0 open contexts"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"),
        (9.94, "9.9 s"),
        (59.9, "59 s"),
        (60.0, "1 min 0 s"),
        (3599.0, "59 min 59 s"),
        (3600.0, "1 h 0 min"),
        (90000.0, "1 d 1 h"),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
