"""Delays messages on their way to a member by their kind, as torch's faulty agent does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from unittest import mock

from ps_wire.v1.frames_pb2 import Request
from trainer_client.session.in_flight import InFlightRequest
from trainer_client.session.requests import Requests

DEFAULTS: Final = {"PYTHON_CALL": 1.5, "SCRIPT_CALL": 1.5}
"""Seconds by the kind of message, if a test names none. These are torch's."""


def delayed(seconds: Mapping[str, float]) -> Any:
    """A block in which messages of these kinds are sent that many seconds later. Their time-outs run meanwhile."""
    send = Requests._send

    def later(self: Requests, in_flight: InFlightRequest[Any], at_once: bool = False) -> None:
        wait = max((seconds.get(kind, 0.0) for kind in _kinds(in_flight.frame.request)), default=0.0)
        if not wait:
            send(self, in_flight, at_once)
            return

        def go() -> None:
            if not in_flight.settled:
                send(self, in_flight)

        asyncio.get_running_loop().call_later(wait, go)

    return mock.patch.object(Requests, "_send", later)


def _kinds(request: Request) -> tuple[str, ...]:
    """Torch's names of a request's kind. Those of functions of torch begin with SCRIPT."""
    if request.HasField("fetch"):
        return "SCRIPT_RREF_FETCH_CALL", "PYTHON_RREF_FETCH_CALL"
    if not request.HasField("call"):
        return ()
    call = request.call
    language = "SCRIPT" if call.function.startswith("torch.") and "._internal." not in call.function else "PYTHON"
    return (f"{language}_REMOTE_CALL" if call.keep else f"{language}_CALL",)
