"""`ps-service` in a process that was forked, whose full collections look at all that is imported, as in a new one."""

from __future__ import annotations

import gc
import runpy

if __name__ == "__main__":
    gc.unfreeze()
    assert gc.get_freeze_count() == 0
    runpy.run_module("ps_service", run_name="__main__", alter_sys=True)
