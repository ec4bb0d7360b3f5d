"""The transports of a session, for tests that hold over each of them. The owner needs `direct_port=0`."""

from __future__ import annotations

from typing import Final

import pytest

TRANSPORTS: Final = {
    "grpc": {"shared_memory": False, "direct": False},
    "direct": {"shared_memory": False},
    "shared_memory": {},
}
"""Arguments of `connect` with which a session uses each transport."""

over_each = pytest.mark.parametrize("transport", TRANSPORTS)
