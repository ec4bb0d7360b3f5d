"""Says in few words why gRPC could not reach an owner."""

from __future__ import annotations

from typing import Final

import grpc

HTTP_SERVER: Final = "an HTTP server is there; use the port of --listen, not that of --http"
"""Why no owner is reached at a port where there will be none."""


def reason(code: grpc.StatusCode, details: str | None) -> str:
    """Why a request or a stream failed.

    Args:
        code: The status of gRPC.
        details: gRPC's own words, which are long where no connection could be made.
    """
    details = details or ""
    if "Connection refused" in details:
        return "connection refused; nothing listens there"
    if "http1.x" in details or "Failed parsing HTTP/2" in details:
        return HTTP_SERVER
    return f"{details} ({code.name})" if details else code.name
