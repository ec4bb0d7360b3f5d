"""Runs the snippets of a page in order, as one program, in the present directory.

python -m tests.pages.runner PAGE ADDRESS...

`await` may stand anywhere. Snippets that are parts of files are left out: they were written to the directory before.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from contextlib import AsyncExitStack
from typing import Any

import trainer_client as tc
from tests.pages.snippets import Page, Snippet, with_addresses


async def run(page: Page, snippet: Snippet, addresses: list[str], names: dict[str, Any]) -> None:
    """Runs a snippet with these names, in which what it defines is left; in a thread if it awaits nothing."""
    text = "\n" * (snippet.line - 1) + with_addresses(snippet.code, addresses)
    code = compile(text, page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        await eval(code, names)
    else:
        await asyncio.to_thread(exec, code, names)


async def by_several(page: Page, snippet: Snippet, addresses: list[str], names: dict[str, Any]) -> None:
    """Runs a snippet in several trainers at once."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(tc.connect(*addresses)) for _ in range(snippet.trainers)]
        async with asyncio.TaskGroup() as tasks:
            for each in clients:
                tasks.create_task(run(page, snippet, addresses, {**names, "ps": each}))


async def main(name: str, *addresses: str) -> None:
    """Runs all snippets, and says so for each."""
    page = Page(name)
    names: dict[str, Any] = {"__name__": "__main__"}
    for snippet in page.snippets():
        if not snippet.runs:
            continue
        await (run if snippet.trainers == 1 else by_several)(page, snippet, list(addresses), names)
        print("ran the snippet in line", snippet.line, flush=True)
    if isinstance(names.get("ps"), tc.Client):
        await names["ps"].close()


if __name__ == "__main__":
    sys.path.insert(0, ".")
    asyncio.run(main(*sys.argv[1:]))
