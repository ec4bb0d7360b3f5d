"""Draws the Mermaid blocks of pages in the site, with pictures that were drawn before: nothing is fetched.

A picture in `docs/site/diagrams` begins with the hash of the block that it was drawn from. `draw.py` draws those that
are missing.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PICTURES = Path(__file__).with_name("diagrams")


def comment_of(source: str) -> str:
    """The first line of the picture of a block."""
    return f"<!-- drawn from {hashlib.sha256(source.strip().encode()).hexdigest()} -->"


def picture_of(source: str) -> str | None:
    """The picture of a block; None if it was not drawn, or drawn from another text."""
    comment = comment_of(source)
    texts = (path.read_text("utf-8") for path in sorted(PICTURES.glob("*.svg")))
    return next((text for text in texts if text.startswith(comment)), None)


class Mermaid(SphinxDirective):
    """A block of Mermaid."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        picture = picture_of("\n".join(self.content))
        if picture is None:
            message = "this diagram has no picture: run `python docs/site/draw.py`"
            logging.getLogger(__name__).warning(message, location=self.get_location())
            return []
        return [nodes.raw("", f'<div class="diagram">{picture}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True}
