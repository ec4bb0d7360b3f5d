"""A trainer that says what it finds in its environment, and whom `tc.connect()` has found: one line of JSON."""

from __future__ import annotations

import json
import os
import sys

import trainer_client as tc

NAMES = ("PS_ADDRESS", "PS_DIRECTORY", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")

if __name__ == "__main__":
    with tc.connect() as ps:
        found = {name: os.environ[name] for name in NAMES}
        found |= {"arguments": sys.argv[1:], "owners": list(ps.owners)}
    print(json.dumps(found))
    print("a line of standard error", file=sys.stderr)
