"""How Sphinx makes the site of the pages: `make docs`.

Its sources are the pages where they are, with the root of the repository as their folder, so that links between them
are the same here and on GitHub. The README is the first page; the navigation is appended to it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "site")]

project = "torch-parameter-server"
author = "the torch-parameter-server authors"
copyright = author
release = re.findall(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)[0]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "diagrams", "docstrings", "layout"]
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/guide/*.md",
    "docs/tutorials/*.md",
    "docs/api/*.rst",
    "benchmarks/README.md",
    "deploy/README.md",
    "deploy/*/README.md",
    "examples/README.md",
    "examples/*/README.md",
]
exclude_patterns = [".*", "out", "**/node_modules"]

# Markdown as GitHub reads it.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

# Names that pages link to have to be on a page. Annotations also name types of torch and Python, and inner ones.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!(trainer_client|ps_service)(\.(codecs|errors|policies|tables|rpc|ray))?\.\w+$).*")
]

autodoc_mock_imports = ["ray"]  # not installed beside the rest; its names stand in annotations only
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
napoleon_custom_sections = [("Attributes", "params_style")]

html_theme = "furo"
html_title = f"torch-parameter-server {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs" / "site" / "scorer.js")
html_copy_source = False
html_show_sphinx = False
pygments_style = "default"
pygments_dark_style = "monokai"
