"""A file of tokens, and owners and trainers that use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import trainer_client as tc
from ps_service.access.token_file import TokenFile
from ps_service.engine import Engine
from ps_service.quotas.quota import QuotaFile
from ps_service.server import Server
from tests import hosted_models
from tests.allowed import allowed

ROLES = ("reader", "trainer", "bulk", "admin", "owner")


class Identities:
    """A file with an identity for each role, of that name."""

    def __init__(self, folder: Path) -> None:
        self.file = TokenFile(folder / "tokens")
        self.tokens = {role: self.file.add(role, (role,)) for role in ROLES}

    def add(self, name: str, *roles: str, **more: Any) -> str:
        """The token of a further identity."""
        self.tokens[name] = self.file.add(name, roles, **more)
        return self.tokens[name]

    @asynccontextmanager
    async def serving(
        self,
        name: str = "ps0",
        modules: tuple[ModuleType, ...] = (),
        quotas: QuotaFile | None = None,
        data_dir: Path | None = None,
        **more: Any,
    ) -> AsyncIterator[Server]:
        """An owner that reads the file, and one of quotas if there is one, and hosts the classes of these modules,
        too."""
        modules_here = allowed(hosted_models, *modules)
        engine = Engine(name, modules_here, tokens=self.file, quotas=quotas, data_dir=data_dir)
        async with Server(engine, **{"direct_port": 0} | more) as server:
            yield server

    def connect(self, server: Server, name: str, **more: Any) -> Any:
        """A trainer with the token of an identity."""
        return tc.connect(server.address, token=self.tokens[name], **more)
