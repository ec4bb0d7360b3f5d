"""Attacks on quotas."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import trainer_client as tc
from ps_service.quotas.quota import QuotaFile
from tests.attack.attack import attack
from tests.attack.scene import Scene

QUOTAS = """
[identity.mallory]
sessions = 3
objects = 4
object_bytes = 1_000_000
"""


@attack(
    "opens more sessions than it may, and makes 60 objects at once over all of them on two owners",
    "each owner keeps as many as the quota says, also when the sessions are opened again; others go on",
    quick=True,
)
async def race_for_a_quota(at: Scene) -> None:
    path = at.folder / "quotas.toml"
    path.write_text(QUOTAS)
    identities, token = at.identities, at.identities.tokens["mallory"]
    async with AsyncExitStack() as stack:
        owners = [
            await stack.enter_async_context(identities.serving(name, quotas=QuotaFile(path))) for name in ("ps1", "ps2")
        ]
        addresses = [each.address for each in owners]

        async def connected() -> tc.Client | None:
            at.tried += 1
            try:
                return await stack.enter_async_context(tc.connect(*addresses, token=token, connect_timeout=0.0))
            except tc.PsError:
                return None

        # One at first: of several at once, each might get a session at one owner and none at the other.
        found = [await connected(), *await asyncio.gather(*(connected() for _ in range(7)))]
        clients = [each for each in found if each is not None]
        at.hold(0 < len(clients) <= 3, f"there are {len(clients)} trainers with sessions at both owners")
        at.tried += 60
        made = [
            clients[number % len(clients)].module("torch.nn.Linear", 249, 250, name=f"net{number}", owner=name)
            for number in range(30)
            for name in ("ps1", "ps2")
        ]
        results = await asyncio.gather(*made, return_exceptions=True)
        odd = [each for each in results if isinstance(each, Exception) and not isinstance(each, tc.errors.QuotaError)]
        at.hold(not odd, f"{odd[:1]}")
        for owner in owners:
            sessions = [each for each in owner.engine.sessions.all() if each.identity.name == "mallory"]
            at.hold(len(sessions) <= 3, f"{owner.engine.name} has {len(sessions)} sessions")
            objects = [each for each in owner.engine.registry.objects() if each.name.startswith("net")]
            at.hold(len(objects) == 4, f"{owner.engine.name} has {len(objects)} objects")
        other = await stack.enter_async_context(identities.connect(owners[0], "trainer"))
        at.hold((await other.module("torch.nn.Linear", 249, 250, name="other")).owner == "ps1", "another is refused")
