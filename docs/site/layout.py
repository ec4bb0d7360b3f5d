"""Puts the navigation behind the first page, and that page where a browser looks for it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

NAVIGATION = Path(__file__).with_name("navigation.md")


def append_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Every page has to be in one of its lists: Sphinx warns of one that is in none."""
    if docname == app.config.root_doc:
        app.env.note_dependency(str(NAVIGATION))
        source[0] += "\n" + NAVIGATION.read_text("utf-8")


def copy_first_page(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        folder = Path(app.outdir)
        shutil.copyfile(folder / f"{app.config.root_doc}.html", folder / "index.html")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", append_navigation)
    app.connect("build-finished", copy_first_page)
    return {"parallel_read_safe": True}
