"""An owner whose process is prepared before it serves: with few descriptors, or with a mapping for each large tensor.

python -m tests.integration.prepared_owner descriptors|mappings FLAGS, with the flags of `ps-service serve`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import runpy
import sys

from ps_wire.limits import MIB

M_MMAP_THRESHOLD = -3
DESCRIPTORS = 200


def main() -> None:
    """Prepares this process, and serves."""
    what = sys.argv[1]
    if what == "descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    else:
        # What is freed goes back to the system at once. An owner leaves alone what the environment has set.
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(MIB)
        assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MIB) == 1
    sys.argv[1] = "serve"
    runpy.run_module("ps_service", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
