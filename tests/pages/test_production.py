"""Tests that the page about production is true: its commands and programs run in their order, as it prints them."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from tests.pages.conftest import Start
from tests.pages.snippets import ROOT, with_addresses
from tests.waiting import until

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.(?:toml|py))\n")


async def test_two_teams_share_two_owners(start: Start, tmp_path: Path) -> None:
    page = (ROOT / "docs/guide/production.md").read_text("utf-8")
    shell = Shell(start, tmp_path)
    for kind, text in _BLOCK.findall(page):
        if kind == "console":
            for line in text.splitlines():
                await shell.run(line.removeprefix("$ "))
        else:
            name = _FILE.match(text)
            assert name is not None
            (tmp_path / name[1]).write_text(with_addresses(text, shell.addresses))
    losses = [float(each.split()[1]) for each in shell.printed if each.startswith("loss ")]
    assert len(losses) == 2 and max(losses) < 0.01
    (status,) = [each for each in shell.printed if " is serving, up " in each]
    assert "ads::net" in status and "search::net" in status
    assert "refused" in shell.printed[-1]


class Shell:
    """Runs command lines: variables, a program, where its output goes, and its exit code in a comment."""

    def __init__(self, start: Start, folder: Path) -> None:
        self.addresses: list[str] = []
        self.printed: list[str] = []
        self._start = start
        self._folder = folder
        self._variables = {**os.environ, "OMP_NUM_THREADS": "1"}

    async def run(self, line: str) -> None:
        code = re.search(r"# exit code (\d)", line)
        words = shlex.split(with_addresses(line, self.addresses), comments=True)
        given = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        words = words[len(given) :] if words[0] != "export" else ["export"]
        if words == ["export"]:
            self._variables |= given
            return
        into = words.pop() if ">" in words else ""
        program = [word for word in words if word != ">"]
        if program[:2] == ["ps-service", "serve"]:
            await self._serve(program)
            return
        if program[:3] == ["ps-service", "token", "revoke"]:
            await self._output(program, self._variables, 0)
            log = self._folder / "audit.jsonl"
            await until(lambda: log.read_text().count('"kind": "tokens"') == 2, 0.02)
            return
        out = await self._output(program, self._variables | given, int(code[1]) if code else 0)
        (self._folder / into).write_text(out) if into else self.printed.append(out)

    async def _serve(self, program: list[str]) -> None:
        program[program.index("--listen") + 1] = "127.0.0.1:0"
        owner = await self._start("ps_service", *program[1:], errors=False, variables=self._variables)
        line = (await owner.stdout.readline()).decode()
        assert " is serving on " in line, line
        self.addresses.append(line.split()[-1])

    async def _output(self, program: list[str], variables: dict[str, str], code: int) -> str:
        if program[0] == "grep":
            lines = [line for name in program[2:] for line in (self._folder / name).read_text().splitlines()]
            return "\n".join(line for line in lines if program[1] in line)
        given = program[1:]
        if program[0] == "python":
            given[0] = given[0].removesuffix(".py")
        module = "tests.pages.program" if program[0] == "python" else "ps_service"
        process = await self._start(module, *given, variables=variables)
        out, errors = await process.communicate()
        assert process.returncode == code, (program, out.decode(), errors.decode())
        return out.decode()
