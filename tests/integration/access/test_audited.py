"""What owners with tokens write into the audit log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trainer_client as tc
from ps_service.measures.audit_log import AuditLog
from tests.integration.access.identities import Identities
from tests.waiting import until


async def test_lines_name_identities_and_no_tokens(identities: Identities, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with identities.serving() as server:
        audit = server.engine.events.audit = AuditLog(str(file), "ps0")
        async with identities.connect(server, "trainer") as ps:
            await ps.module("torch.nn.Linear", 2, 2, name="net")
        async with identities.connect(server, "reader") as ps:
            with pytest.raises(tc.errors.PermissionDeniedError):
                await ps.delete("net")
        with pytest.raises(tc.errors.UnauthenticatedError):
            await tc.connect(server.address, token="ps_" + "x" * 43)
        audit.close()
    text = file.read_text()
    lines = [json.loads(each) for each in text.splitlines()]
    told = [(each["kind"], each.get("identity", "")) for each in lines]
    assert told[:6] == [
        ("joined", "trainer"),
        ("made", "trainer"),
        ("left", "trainer"),
        ("joined", "reader"),
        ("refused", "reader"),
        ("left", "reader"),
    ]
    assert set(told[6:]) == {("refused", "")}  # gRPC may try again by itself
    assert "delete was refused to reader: owner 'ps0' refuses this: delete needs the role admin" in lines[4]["event"]
    assert "was refused to a stranger" in lines[6]["event"]
    assert "xxx" not in text and not any(token in text for token in identities.tokens.values())


async def test_an_identity_that_is_revoked_is_named(identities: Identities, tmp_path: Path) -> None:
    async with identities.serving() as server:
        audit = server.engine.events.audit = AuditLog(str(tmp_path / "audit.jsonl"), "ps0")
        ps = await identities.connect(server, "trainer")
        identities.file.revoke("trainer")
        await until(lambda: ps.sessions["ps0"].state == "closed", 0.02)
        await ps.close()
        audit.close()
    lines = [json.loads(each) for each in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert ("ended", "trainer") in [(each["kind"], each.get("identity")) for each in lines]
