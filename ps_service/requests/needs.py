"""The role that each operation needs: a table of its own, which a command prints without the code that runs them."""

from __future__ import annotations

from typing import Final

from ps_service.access import roles
from ps_service.access.access import Point
from ps_service.requests import plain

_ALL: Final = (
    Point("create", roles.TRAINER),
    Point("attach", roles.READER),
    Point("release", roles.READER),
    Point("delete", roles.ADMIN),
    Point("call", roles.TRAINER, plain.FORWARD),
    Point("fetch", roles.BULK, plain.RESULT),
    Point("backward", roles.TRAINER),
    Point("gradients", roles.TRAINER),
    Point("norm", roles.TRAINER),
    Point("scale", roles.TRAINER),
    Point("unscale", roles.TRAINER),
    Point("set_requires_grad", roles.TRAINER),
    Point("end_context", roles.TRAINER),
    Point("optimizer", roles.TRAINER),
    Point("scheduler", roles.TRAINER),
    Point("step", roles.TRAINER),
    Point("set_options", roles.ADMIN, plain.OPTIONS),
    Point("leave", roles.TRAINER),
    Point("pull", roles.BULK),
    Point("push", roles.TRAINER),
    Point("add_gradients", roles.TRAINER),
    Point("hold", roles.TRAINER),
    Point("settle", roles.TRAINER),
    Point("reported", roles.TRAINER),
    Point("add_to_curves", roles.TRAINER),
    Point("state", roles.BULK),
    Point("load_state", roles.ADMIN),
    Point("status", roles.READER),
    Point("register", roles.OWNER),
    Point("lookup", roles.READER),
    Point("members", roles.READER),
    Point("rendezvous", roles.OWNER),
    Point("join_communicator", roles.TRAINER),
    Point("leave_communicator", roles.TRAINER),
    Point("collective", roles.TRAINER),
    Point("sessions", roles.ADMIN),
    Point("history", roles.READER),
    Point("checkpoint", roles.ADMIN),
    Point("durable", roles.TRAINER),
    Point("snapshot", roles.TRAINER, plain.ASKS_FOR_SNAPSHOT),
    Point("move", roles.ADMIN, plain.ACCEPT),
    Point("evict", roles.ADMIN),
)

NEEDS: Final = {each.name: each for each in _ALL}
"""What every operation needs, by its name: there is no default, so each of them has to be here."""
