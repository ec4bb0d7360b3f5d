"""Exports that follow, of which one object cannot be had."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_reader import layout
from tests.integration.tables.exports import brought, exporting
from tests.waiting import until
from trainer_client.serving.exporter import ExporterOfModule
from trainer_client.serving.live_objects import LiveObjects

OF_ONE_OBJECT = ("RemoteError", "TooLargeError", "PermissionDeniedError", "RowsMovedError")
"""Errors after which what else is exported goes on."""


def written(path: Path, name: str = "") -> list[Path]:
    """The files of an object that are there, or of all."""
    return sorted(path.glob(f"{name}*.safetensors"))


async def test_while_a_named_object_is_missing_nothing_is_written(
    ps: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        await ps.module(nn.Linear, 2, 1, name=name)
    missed = 0

    async def counted(self: LiveObjects, name: str, had: Collection[str] = ()) -> tc.RemoteModule:
        nonlocal missed
        try:
            return await find(self, name, had)
        except tc.errors.UnknownNameError:
            missed += 1
            raise

    find = LiveObjects.find_module
    monkeypatch.setattr(LiveObjects, "find_module", counted)
    async with exporting(ps, tmp_path, modules=["a", "b"]):
        await brought(tmp_path)
        there = written(tmp_path)
        await ps.delete("b")
        await until(lambda: missed >= 5)
        assert written(tmp_path) == there
        await ps.module(nn.Linear, 3, 1, name="b")
        assert (await brought(tmp_path)).state_dict("b")["weight"].shape == (1, 3)


async def test_of_what_is_written_again_and_again_the_last_alone_stays(
    ps: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        await ps.module(nn.Linear, 2, 1, name=name)
    is_away, failed, most = False, 0, 0

    async def away(self: ExporterOfModule) -> None:
        nonlocal failed, most
        if is_away and self.name == "b":
            failed, most = failed + 1, max(most, len(written(tmp_path, "a")))
            raise tc.errors.UnavailableError("away")
        await before(self)

    before = ExporterOfModule.round
    monkeypatch.setattr(ExporterOfModule, "round", away)
    async with exporting(ps, tmp_path, modules=["a", "b"]):
        await brought(tmp_path)
        is_away = True
        await until(lambda: failed >= 6)
        assert most == 3, "those of the version, of the round before and of this one"
        is_away = False
        number = (await brought(tmp_path)).number
    kept = {name for each in layout.versions(tmp_path) for name in layout.read_manifest(tmp_path, each).files()}
    assert number == 2 and kept == {each.name for each in written(tmp_path)}


class Failing:
    """Rounds of the module "bad" raise an error, while there is one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.raised = 0
        before = ExporterOfModule.round

        async def round(part: ExporterOfModule) -> None:
            if self.error is not None and part.name == "bad":
                self.raised += 1
                raise self.error
            await before(part)

        monkeypatch.setattr(ExporterOfModule, "round", round)


@pytest.mark.parametrize("named", [False, True], ids=["all", "named"])
@pytest.mark.parametrize("kind", [*OF_ONE_OBJECT, "OverloadedError", "QuotaError"])
async def test_one_object_that_fails_for_a_while_does_not_end_an_export(
    ps: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, named: bool
) -> None:
    bad, good = [await ps.module(nn.Linear, 2, 1, name=name) for name in ("bad", "good")]
    failing, zeros = Failing(monkeypatch), {"weight": torch.zeros(1, 2), "bias": torch.zeros(1)}
    async with exporting(ps, tmp_path, modules=["bad", "good"] if named else None):
        before = (await brought(tmp_path)).state_dict("bad")["weight"].tolist()
        failing.error = getattr(tc.errors, kind)("not now")
        await until(lambda: failing.raised)  # no round is under way that began before
        await bad.load_state_dict(zeros)
        await good.load_state_dict(zeros)
        await until(lambda: failing.raised >= 3)
        if kind in OF_ONE_OBJECT:
            version = await brought(tmp_path)
            assert version.state_dict("bad")["weight"].tolist() == before
            assert not version.state_dict("good")["weight"].any()
        failing.error = None
        assert not (await brought(tmp_path)).state_dict("bad")["weight"].any()


async def test_what_fails_in_its_first_round_is_tried_again(
    ps: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Failing(monkeypatch)
    async with exporting(ps, tmp_path):
        await brought(tmp_path)
        failing.error = tc.errors.RemoteError("not yet")
        await ps.module(nn.Linear, 2, 1, name="bad")
        await until(lambda: failing.raised >= 3)
        assert not (await brought(tmp_path)).modules
        failing.error = None
        assert (await brought(tmp_path)).modules == ["bad"]
    assert caplog.text.count("'bad' is not exported") == 1


async def test_an_export_that_begins_while_rows_move_tries_again(
    ps: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ps.module(nn.Linear, 2, 1, name="bad")
    failing = Failing(monkeypatch)
    failing.error = tc.errors.RowsMovedError("not now")
    async with exporting(ps, tmp_path):
        await until(lambda: failing.raised >= 3)
        failing.error = None
        assert (await brought(tmp_path)).modules == ["bad"]


async def test_an_object_that_is_denied_from_the_beginning_is_told_at_once(
    ps: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ps.module(nn.Linear, 2, 1, name="bad")
    Failing(monkeypatch).error = tc.errors.PermissionDeniedError("it needs another role")
    with pytest.raises(tc.errors.PermissionDeniedError, match="another role"):
        await ps.export(tmp_path, follow=True, every=0.01)
