"""Tests of what is said when a model was edited, and its owner still runs what it has loaded before."""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server

BEGIN = """
from torch import nn
from ps_service import hosted, remote


def helper():
    return 1


@hosted
class Net(nn.Linear):
"""
OLD = f"""{BEGIN}
    def __init__(self, width):
        super().__init__(width, 1)

    @remote
    def half(self, x):
        raise ValueError("an old fault")
"""
NEW = f"""{BEGIN}
    def __init__(self, width, drop=0.5):
        super().__init__(width, 1)

    @remote
    def half(self, x):
        return x / 2

    @remote
    def twice(self, x):
        return 2 * x


@hosted
class Other(nn.Linear):
    pass
"""
LOADED = r"owner 'ps0' has loaded edited_net at \d\d:\d\d, "
BEFORE = LOADED + "before your change to Net: restart it"


class Edited:
    """A file of a module, and the module as the trainer has it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "edited_net.py"

    def write(self, text: str) -> ModuleType:
        """Writes the file, and loads it as a program does that starts now."""
        self.file.write_text(text)
        importlib.invalidate_caches()
        sys.modules.pop("edited_net", None)
        return importlib.import_module("edited_net")


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edited]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Edited(tmp_path)
    made.write(OLD)
    yield made
    sys.modules.pop("edited_net", None)


@pytest.fixture
async def server(edited: Edited) -> AsyncIterator[Server]:
    """An owner that has loaded the old file."""
    async with Server(Engine("ps0", AllowList.importing(["edited_net"])), direct_port=0) as server:
        yield server


async def told(server: Server, mistake: Callable[[Any], Any]) -> str:
    """The message of a mistake, which is the same for both clients."""
    async with tc.connect(server.address) as ps:
        with pytest.raises(tc.PsError) as caught:
            await mistake(ps)

    def blocking() -> str:
        with tc.connect(server.address) as ps, pytest.raises(tc.PsError) as caught:
            mistake(ps)
        return first_line(caught.value)

    assert await asyncio.to_thread(blocking) == first_line(caught.value)
    return first_line(caught.value)


def first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the trainer was warned of."""
    found = [each for each in caplog.records if each.name.startswith("trainer_client")]
    assert all(each.levelno == logging.WARNING for each in found)
    return [each.getMessage() for each in found]


async def test_a_constructor_that_has_a_new_argument(server: Server, edited: Edited) -> None:
    new = edited.write(NEW)
    expected = re.compile(rf"builtins.TypeError: Net.__init__\(\) got an unexpected keyword argument 'drop'; {BEFORE}")
    assert expected.fullmatch(await told(server, lambda ps: ps.module(new.Net, 3, drop=0.1)))
    assert expected.fullmatch(await told(server, lambda ps: ps.module("edited_net.Net", 3, drop=0.1)))


async def test_a_call_that_fails(server: Server, edited: Edited) -> None:
    async with tc.connect(server.address) as ps:
        await ps.module("edited_net.Net", 3, name="net")
        net = await ps.attach("net")
        edited.write(NEW)
        with pytest.raises(ValueError, match=f"an old fault; {BEFORE}\n"):
            await net.half(torch.ones(1))
        with pytest.raises(tc.errors.UnknownMethodError, match=BEFORE):
            await net.call("twice", torch.ones(1))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (NEW, "It is @remote in this program: the owner has loaded an older file, so restart it"),
        (NEW.replace("@remote", ""), "This program has it without @remote: mark it, and restart the owner"),
    ],
)
async def test_a_method_that_is_new(server: Server, edited: Edited, text: str, hint: str) -> None:
    new = edited.write(text)

    def blocking() -> None:
        with tc.connect(server.address) as ps:
            ps.module(new.Net, 3).twice(torch.ones(1))

    message = re.escape(f"edited_net.Net offers no 'twice', only forward, half. {hint}")
    async with tc.connect(server.address) as ps:
        net = await ps.module(new.Net, 3)
        with pytest.raises(AttributeError, match=f"^{message}$"):
            net.twice(torch.ones(1))
        with pytest.raises(AttributeError, match=r"'zero_grad', only .* Gradients belong to a pass"):
            net.zero_grad()
    with pytest.raises(AttributeError, match=f"^{message}$"):
        await asyncio.to_thread(blocking)


async def test_a_class_that_is_new(server: Server, edited: Edited) -> None:
    new = edited.write(NEW)
    message = await told(server, lambda ps: ps.module(new.Other, 3, 1))
    assert re.fullmatch(
        r"class 'edited_net.Other' is not on this owner's allow-list; it must be decorated with @hosted in a module "
        r"given to the owner with --import; the owner has loaded edited_net at \d\d:\d\d, before your change: "
        r"restart it",
        message,
    )


@pytest.mark.parametrize("name", ["", "net"])
async def test_a_class_that_differs_is_told_of_when_it_is_made(
    server: Server, edited: Edited, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    new = edited.write(NEW)
    async with tc.connect(server.address) as ps:
        await ps.module("edited_net.Net", 3, name=name)
        assert not warnings(caplog)
        await ps.module(new.Net, 3, name=name)
    (message,) = warnings(caplog)
    assert re.fullmatch(BEFORE, message)


async def test_a_trainer_elsewhere_with_another_file(
    server: Server, edited: Edited, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    sys.path.insert(0, str(elsewhere))
    new = Edited(elsewhere).write(NEW)
    other = LOADED + "and Net there differs from that of this program: give it the same file, and restart it"
    message = await told(server, lambda ps: ps.module(new.Net, 3, drop=0.1))
    assert re.fullmatch(rf"builtins.TypeError: .* 'drop'; {other}", message)
    async with tc.connect(server.address) as ps:
        await ps.module(new.Net, 3)
    (warning,) = warnings(caplog)
    assert re.fullmatch(other, warning)
    sys.path.remove(str(elsewhere))


@pytest.mark.parametrize(
    "text", [OLD, OLD.replace("return 1", "return 2"), f"# A comment.\n{OLD}"], ids=["same", "helper", "comment"]
)
async def test_nothing_is_said_if_the_class_is_the_same(
    server: Server, edited: Edited, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    new = edited.write(text)
    message = await told(server, lambda ps: ps.module(new.Net, 3, drop=0.1))
    assert message == "builtins.TypeError: Net.__init__() got an unexpected keyword argument 'drop'"
    async with tc.connect(server.address) as ps:
        await ps.module(new.Net, 3)
        await ps.module(torch.nn.Linear, 3, 1)
    assert not warnings(caplog)


async def test_a_file_that_is_gone_or_broken_says_nothing(server: Server, edited: Edited) -> None:
    for text in ("class Net(:", None):
        if text is None:
            edited.file.unlink()
        else:
            edited.file.write_text(text)
        message = await told(server, lambda ps: ps.module("edited_net.Net", 3, drop=0.1))
        assert message == "builtins.TypeError: Net.__init__() got an unexpected keyword argument 'drop'"


async def test_an_error_that_cannot_be_explained_is_answered(
    server: Server, edited: Edited, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> str:
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr(server.engine.allowlist.loaded, "difference", fail)
    async with tc.connect(server.address) as ps:
        with pytest.raises(tc.errors.InternalError, match=r"its log says why \(SystemError\)"):
            await ps.module("edited_net.Net", 3, drop=0.1)
        assert "unexpected keyword argument 'drop'" in caplog.text
        await ps.module("edited_net.Net", 3)
