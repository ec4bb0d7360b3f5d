"""The table of torch's own tests in the documentation says what is so."""

from __future__ import annotations

from tests.conftest import ROOT
from tests.rpc.torch_suite import MISSING, SAME, ours, reasons, table, torchs, verdict


def test_the_page_shows_the_table_as_it_is() -> None:
    page = (ROOT / "docs" / "coming-from-torch-rpc.md").read_text()
    assert table() in page
    assert reasons() in page


def test_every_test_of_torchs_was_looked_at() -> None:
    names = ours()
    found = {(test.cls, test.name): verdict(test, names) for test in torchs()}
    assert [where for where, (what, why) in found.items() if what == MISSING and why == "not looked at"] == []
    assert sum(what == SAME for what, _ in found.values()) >= 250
