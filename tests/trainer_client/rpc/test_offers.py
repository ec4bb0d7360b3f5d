"""Tests of what a program that joins a group with `init_rpc` offers to the other members."""

from __future__ import annotations

import sys

import pytest

from trainer_client.nn import RemoteModule
from trainer_client.rpc.own_owner import allowing


def test_a_program_that_imports_a_remote_module_is_not_told_to_mark_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "RemoteModule", RemoteModule, raising=False)
    allowed = allowing(())
    assert not caplog.records
    assert allowed.function("trainer_client.nn.RemoteModule.init_from_module_rref")
