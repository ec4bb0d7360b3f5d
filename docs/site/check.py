"""Checks the site that Sphinx has made: its links, the public names, the first sentences, and its search.

python docs/site/check.py out/docs
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from sphinx.search.en import SearchEnglish

INTERFACES: Final = (
    *("trainer_client", "trainer_client.codecs", "trainer_client.errors", "trainer_client.policies"),
    *("trainer_client.tables", "ps_service", "ps_service.ray", "ps_reader"),
)

SEARCHES: Final = {
    "parameter server": "README",
    "BSP": "docs/guide/several-trainers",
    "SSP": "docs/guide/several-trainers",
    "ASP": "docs/guide/several-trainers",
    "checkpoint": "docs/guide/restart",
    "resume": "docs/guide/save-and-load",
    "export": "docs/guide/save-and-load",
    "restart": "docs/guide/restart",
    "quota": "docs/guide/share",
    "TLS": "docs/guide/protect",
    "DiLoCo": "docs/guide/local-steps",
    "embedding": "docs/guide/tables",
    "TensorBoard": "docs/guide/progress",
    "optimizer": "docs/guide/train",
    "cancellation": "docs/guide/call-a-model",
    "compression": "docs/compression",
    "TorchRec": "docs/guide/table-layers",
}
"""What somebody looks for, and the page about it, which has it in its title or in a heading. The search puts pages of
the guide first (`scorer.js`)."""


class Links(HTMLParser):
    """The links of a page, and what links may lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.add(value)
            elif name == "id" and value:
                self.anchors.add(value)


@cache
def links(path: Path) -> Links:
    return Links(path)


def dead_links(site: Path) -> list[str]:
    """Links from one file of the site to another that lead nowhere. Those to other sites are not tried."""
    found = []
    for page in sorted(site.rglob("*.html")):
        for target in sorted(links(page).targets):
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            path = (page.parent / unquote(url.path)).resolve() if url.path else page
            anchor = unquote(url.fragment)
            if not path.is_file() or (anchor and path.suffix == ".html" and anchor not in links(path).anchors):
                found.append(f"{page.relative_to(site)}: {target} leads nowhere")
    return found


def documented(site: Path) -> set[str]:
    """The names in the inventory of the site."""
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" py:")[0] for line in zlib.decompress(packed).decode().splitlines() if " py:" in line}


def missing_names(site: Path) -> list[str]:
    """Public names that are on no page of `docs/api`. Modules have a page each."""
    names = documented(site)
    found = []
    for interface in INTERFACES:
        for name in (
            import_module(interface).__all__ if interface != "ps_service.ray" else ("Cluster", "OwnerState", "start")
        ):
            again = f"trainer_client.{name}", f"trainer_client.errors.{name}"
            if f"{interface}.{name}" not in INTERFACES and names.isdisjoint((f"{interface}.{name}", *again)):
                found.append(f"{interface}.{name} is on no page of docs/api")
    return found


def without_purpose(site: Path, pages: list[str]) -> list[str]:
    """Pages whose title is not followed by a paragraph."""
    return [
        f"{page} does not begin with a sentence that says what it is for"
        for page in pages
        if not re.search(r"</h1>\s*<p>", (site / f"{page}.html").read_text("utf-8"))
    ]


def not_found(index: dict) -> list[str]:
    """Searches that do not bring the page about their term by its title or a heading."""
    english = SearchEnglish({})
    found = []
    for search, page in SEARCHES.items():
        number = index["docnames"].index(page)
        for word in english.split(search):
            pages = index["titleterms"].get(english.stem(word.lower()), [])
            if number not in (pages if isinstance(pages, list) else [pages]):
                found.append(f"a search for {search!r} does not bring {page}, which has no heading with {word!r}")
    return found


def main(folder: str) -> int:
    site = Path(folder).resolve()
    script = (site / "searchindex.js").read_text("utf-8")
    index = json.loads(script[script.index("{") : script.rindex("}") + 1])
    wrong = [
        *dead_links(site),
        *missing_names(site),
        *without_purpose(site, index["docnames"]),
        *not_found(index),
    ]
    print("\n".join(wrong) or f"{len(index['docnames'])} pages, {len(documented(site))} names: nothing is wrong")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
