"""Functions that run until another member lets them go."""

from __future__ import annotations

import threading
from typing import Any

from ps_service import remote
from ps_wire.runtime.scopes import current_scope
from trainer_client import rpc

EVENTS: dict[str, threading.Event] = {}
"""What functions here wait for, by name."""

KEPT: dict[str, Any] = {}
"""What functions on this member have kept for others, by name."""


@remote
def for_ever() -> None:
    rpc.rpc_sync(rpc.get_worker_info().name, for_ever)


@remote
def wait_for(event: str, seconds: float = 60.0) -> bool:
    EVENTS.setdefault(f"{event} begun", threading.Event()).set()
    return EVENTS.setdefault(event, threading.Event()).wait(seconds)


@remote
def nested_wait(to: str, event: str) -> None:
    let_go(f"{event} called")
    try:
        rpc.rpc_sync(to, wait_for, args=(event,), timeout=0)
    except Exception as error:
        KEPT[event] = type(error).__name__
        raise
    finally:
        let_go(f"{event} ended")


@remote
def has_called(event: str) -> bool:
    """Whether `nested_wait` has begun here."""
    return EVENTS.setdefault(f"{event} called", threading.Event()).is_set()


@remote
def how_it_ended(event: str) -> str:
    wait_for(f"{event} ended", 20)
    return KEPT[event]


@remote
def seconds_of_a_nested_call() -> float:
    """How long a call that is made here, and asks for a minute, may take."""
    scope = current_scope.get()
    assert scope is not None
    seconds = scope.within(60.0)
    assert seconds is not None
    return seconds


@remote
def let_go(event: str) -> None:
    EVENTS.setdefault(event, threading.Event()).set()


@remote
def begun(event: str) -> bool:
    return EVENTS.setdefault(f"{event} begun", threading.Event()).wait(20)
