"""The states of torch's default generators, as logs and checkpoints have them."""

from __future__ import annotations

from contextlib import suppress

import torch


def states(device: torch.device) -> bytes:
    """The state of the CPU's generator; behind it, of an owner that computes on a GPU, that of the GPU's."""
    state: bytes = torch.get_rng_state().numpy().tobytes()
    if device.type == "cuda":
        with suppress(RuntimeError):  # after a fault the GPU answers nothing any more
            state += torch.cuda.get_rng_state(device).numpy().tobytes()
    return state


def set_states(states: bytes, device: torch.device) -> None:
    """Sets the generators to such states. Where they are those of an owner on the CPU, a GPU's stays as it is."""
    state = torch.frombuffer(bytearray(states), dtype=torch.uint8)
    own = torch.get_rng_state().numel()
    torch.set_rng_state(state[:own].clone())
    if device.type == "cuda" and len(state) > own:
        torch.cuda.set_rng_state(state[own:].clone(), device)
