"""Tests that an engine is complete when it is constructed, and keeps the same parts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from tests import hosted_models
from tests.hosted_models import Affine
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.peers import GroupPeers
from trainer_client.rpc.planning import Plan
from trainer_client.session.settings import Settings

ROOT = Path(__file__).parents[2]
PACKAGES = ("ps_service", "trainer_client", "tests", "benchmarks", "examples")
NAMES = ("engine", "_engine")
FOLLOWED = re.compile(r"engine\s*\.\s*\w+\b(?!\s*[.(\[])")


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes of an engine that a module assigns to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            of = node.value
            name = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""
            if name in NAMES:
                yield node


def test_no_module_assigns_to_an_attribute_of_an_engine() -> None:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    # Where nothing but a call, an item or an attribute of it follows, none is assigned to.
    texts = {path: text for path in paths if FOLLOWED.search(text := path.read_text("utf-8"))}
    assert len(texts) > 50
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path, text in texts.items()
        for node in assigned(ast.parse(text))
    ]
    assert found == []


def test_an_assignment_to_an_engine_is_found() -> None:
    code = "engine.a = 1; self._engine.b += 1; owner.engine.c: int = 1; del engine.d; engine.gate.e = f(engine.f)"
    assert [node.attr for node in assigned(ast.parse(code))] == ["a", "b", "c", "d"]
    assert all(FOLLOWED.search(each) for each in code.split("; ")[:-1])


async def test_its_parts_are_the_same_objects_for_its_whole_life(tmp_path: Path) -> None:
    engine = Engine("ps0", AllowList([hosted_models]), data_dir=tmp_path)
    parts = dict(vars(engine))
    server = Server(engine)
    await server.start()
    member = Agent(server, Settings())
    await member.join(Plan(), GroupPeers(member))
    async with tc.connect(server.address) as ps:
        net = await ps.module(Affine, 2, 1, name="net")
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(2))).sum())
    await member.leave(5.0)
    assert vars(engine).keys() == parts.keys()
    assert [name for name, part in vars(engine).items() if part is not parts[name]] == []


def test_an_owner_with_a_data_directory_is_durable(tmp_path: Path) -> None:
    durable, other = Engine("ps0", data_dir=tmp_path), Engine("ps1")
    assert (durable.durable, other.durable) == (True, False)
    for engine in (durable, other):
        engine.close()
