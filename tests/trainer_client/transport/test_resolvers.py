"""Tests of how the address of an owner is found."""

from __future__ import annotations

import socket
import threading
from functools import partial
from typing import Any

import pytest

import trainer_client as tc
from ps_wire.errors import InvalidArgumentError
from trainer_client.transport.resolvers import Candidates, found

ONE, TWO = "10.0.0.1:50051", "10.0.0.2:50051"
RECORDS = {"ps": ["10.0.0.1", "10.0.0.2", "fd00::1"], "ps0": ["10.0.0.1"]}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that DNS was asked for."""
    asked: list[str] = []

    def look_up(host: str, port: int, **_: object) -> list[Any]:
        asked.append(host)
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in RECORDS[host]
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


async def test_candidates_come_one_after_the_other_again_and_again() -> None:
    candidates = Candidates([ONE, TWO, ONE])
    assert [await candidates.next() for _ in range(5)] == [ONE, TWO, ONE, TWO, ONE]
    assert not candidates.is_plain


@pytest.mark.parametrize("address", [ONE, "[::1]:1", "localhost:1", "unix:/tmp/socket", "dns:///ps0:1"])
async def test_an_address_without_a_name_in_dns_is_taken_as_it_is(asked: list[str], address: str) -> None:
    candidates = Candidates([address])
    assert candidates.is_plain and await candidates.all() == [address]
    assert asked == []


async def test_a_host_name_stands_for_all_of_its_addresses_and_is_asked_for_in_each_round(asked: list[str]) -> None:
    candidates = Candidates(["ps:50051"])
    assert not candidates.is_plain
    assert await candidates.all() == [ONE, TWO, "[fd00::1]:50051"]
    assert [await candidates.next() for _ in range(4)] == [ONE, TWO, "[fd00::1]:50051", ONE]
    assert asked == ["ps"] * 3
    assert await Candidates(["ps0:50051", TWO, "ps:50051"]).all() == [ONE, TWO, "[fd00::1]:50051"]


async def test_no_candidate_is_none() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one owner"):
        Candidates([])
    with pytest.raises(InvalidArgumentError, match="'ps0' is not the address of an owner"):
        Candidates([ONE, "ps0"])


class Finder:
    """What tells where owners are may be any object that can be called."""

    async def __call__(self, name: str) -> str:
        return f"{name}:1"


async def told(name: str) -> str:
    return f"{name}:1"


async def test_functions_may_be_async_or_not() -> None:
    threads = []

    def find(name: str) -> str:
        threads.append(threading.current_thread())
        return f"{name}:1"

    for each in (find, told, partial(told), Finder(), lambda name: told(name)):
        assert await found(each, "ps1") == "ps1:1"
    assert threads[0] is not threading.current_thread()


@pytest.mark.parametrize(("address", "message"), [("ps1", "is not the address"), (None, "not a NoneType")])
async def test_what_a_function_tells_has_to_be_an_address(address: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        await found(lambda _: address, "ps1")


def test_a_function_needs_names() -> None:
    with pytest.raises(InvalidArgumentError, match="needs the names of the owners"):
        tc.connect(directory=told)
