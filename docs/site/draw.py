"""Draws the Mermaid blocks of all pages that have no picture yet, and removes pictures of blocks that are gone.

python docs/site/draw.py    # needs npm, which fetches Mermaid, and Chromium
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from docs.site.diagrams import PICTURES, comment_of  # noqa: E402
from tests.ps_service.monitoring.chromium.browser import start  # noqa: E402

MERMAID: Final = "mermaid@11.12.1"

_SETTINGS: Final = "{startOnLoad: false, theme: 'neutral', htmlLabels: false, flowchart: {htmlLabels: false}}"
_DRAW: Final = """
const [source, name, done] = arguments;
mermaid.render(name, source).then(({svg}) => done(svg), error => done("failed: " + error));
"""


def blocks() -> list[tuple[str, str]]:
    """A name and the text of each block."""
    found = []
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        texts = re.findall(r"^```mermaid\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        stem = page.relative_to(ROOT).with_suffix("").as_posix().replace("/", "-").lower()
        found += [(f"{stem}-{number}", text) for number, text in enumerate(texts, 1)]
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["npm", "pack", MERMAID], cwd=folder, check=True, capture_output=True, text=True
        ).stdout.split()[-1]
        with tarfile.open(Path(folder, packed)) as archive:
            archive.extract("package/dist/mermaid.min.js", folder, filter="data")
        page = Path(folder, "page.html")
        page.write_text(
            '<meta charset="utf-8"><script src="package/dist/mermaid.min.js"></script>'
            f"<script>mermaid.initialize({_SETTINGS})</script>"
        )
        driver = start()
        try:
            driver.get(page.as_uri())
            pictures = {name: draw(driver, name, text) for name, text in blocks()}
        finally:
            driver.quit()
    PICTURES.mkdir(exist_ok=True)
    for path in PICTURES.glob("*.svg"):
        path.unlink()
    for name, picture in pictures.items():
        (PICTURES / f"{name}.svg").write_text(picture, "utf-8")
        print(PICTURES / f"{name}.svg")


def draw(driver, name: str, text: str) -> str:  # type: ignore[no-untyped-def]
    """The picture of a block, with its comment before it."""
    svg = driver.execute_async_script(_DRAW, text, f"diagram-{name}")
    if not svg.startswith("<svg"):
        raise SystemExit(f"{name}: {svg}")
    return f"{comment_of(text)}\n{svg}\n"


if __name__ == "__main__":
    main()
