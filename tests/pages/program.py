"""Runs a file of the present directory, as `python NAME.py ARGUMENTS` would.

python -m tests.pages.program NAME ARGUMENTS
"""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    sys.path.insert(0, ".")
    sys.argv[:] = [f"{sys.argv[1]}.py", *sys.argv[2:]]
    runpy.run_path(sys.argv[0], run_name="__main__")
