"""Imports what the first optimizer of a process needs, before a trainer asks for one."""

from __future__ import annotations

import threading

import torch


def warm() -> None:
    """Makes an optimizer, and steps it, in any thread. The first one imports torch's compiler: 800 modules, 1.2 s of
    processor time. Optimizers that are made meanwhile wait for it."""
    parameter = torch.zeros(1)
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.1).step()


def warm_soon() -> None:
    """Does it in a thread of its own, so that an owner serves at once; the process does not wait for its end."""
    threading.Thread(target=warm, name="ps-warm", daemon=True).start()
