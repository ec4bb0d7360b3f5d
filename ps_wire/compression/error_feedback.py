"""Error feedback: what a codec leaves out is kept, and added to the next gradient of the parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ps_wire.compression import checks
from ps_wire.compression.codec import FLOATS, Encoded, work_dtype
from ps_wire.compression.registry import decode
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_wire.compression.choice import Choice


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept of one parameter: the sum of what was left out, the dtype of gradients, the state of its codec."""

    residual: torch.Tensor | None = None
    dtype: torch.dtype | None = None
    state: dict[str, Any] = field(default_factory=dict)


class ErrorFeedback:
    """Encodes the gradients of one sender, and keeps a residual for each parameter.

    With residual e, gradient g and codec C: send C(g + e), keep e' = (g + e) - C(g + e). So the sum of what the
    receiver decodes differs from the sum of the gradients by one residual. e is float64 for float64 gradients, else
    float32. Codecs for which it makes no sense (`Codec.feedback`), sparse and complex gradients, and parameters without
    a codec have none. States of codecs are kept, too, and residuals before the last encoding for `rollback`. Not
    thread-safe.

    Sources: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error Feedback
    Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
    """

    def __init__(self, choice: Choice, enabled: bool = True) -> None:
        self._choice = choice
        self._enabled = enabled
        self._kept: dict[str, _Kept] = {}
        self._before: dict[str, _Kept] = {}

    def encode(self, name: str, gradient: torch.Tensor) -> torch.Tensor | Encoded:
        """What to send for a gradient: an `Encoded`, or the tensor itself where the choice has no codec for it. Raises
        `InvalidArgumentError` if the residual of that name has another shape, and `NonFiniteGradientError` if NaN or
        infinity would get into a message that has no form for them, or into a residual. Residual and state stay as they
        are then, and `rollback` does not go back behind it."""
        codec = self._choice.codec_for(name, gradient)
        spare = self._before.pop(name, _Kept()).residual
        if codec is None:
            return gradient
        kept = self._kept.get(name, _Kept())
        # Codecs replace what they keep, and do not change it.
        state = dict(kept.state)
        residual = kept.residual
        if spare is residual:
            # A sparse gradient came last, and left the residual as it was.
            spare = None
        if self._enabled and codec.feedback and gradient.layout is torch.strided and gradient.dtype in FLOATS:
            residual = _with_residual(name, gradient.detach(), residual, spare)
            encoded = codec.encode(residual.to(gradient.dtype), state)
            codec.take_out(encoded, residual, gradient.detach())
            checks.refuse_non_finite(checks.finite(residual), "error feedback")
        else:
            encoded = codec.encode(gradient, state)
        self._kept[name] = _Kept(residual, gradient.dtype, state)
        self._before[name] = kept
        return encoded

    def rollback(self, names: Iterable[str] | None = None) -> None:
        """Forgets the last encoding of parameters, or of all: residuals and states are what they were before it. It
        works once for each encoding, and has no effect on a parameter that was not encoded since the last one."""
        for name in list(self._before) if names is None else names:
            before = self._before.pop(name, None)
            if before is not None:
                self._kept[name] = before

    def put_back(self, name: str, encoded: Encoded) -> None:
        """Adds what a refused message would have changed to the residual, so that the next message carries it: once
        for any earlier message. After it, `rollback` has nothing to go back to. Raises `InvalidArgumentError` if the
        parameter has no residual."""
        self._residual(name).add_(self._decoded(name, encoded))
        self._before.pop(name, None)

    def retract(self, name: str, gradient: torch.Tensor, encoded: Encoded) -> None:
        """Forgets an earlier encoding after which others were made: what it left out, (g + e) - C(g + e) - e, is taken
        out of the residual again, and out of the one that `rollback` goes back to. What was sent since then, and the
        state of the codec, stay. Raises `InvalidArgumentError` if the parameter has no residual."""
        residual = self._residual(name)
        left = self._decoded(name, encoded).to(residual.dtype) - gradient.detach().to(residual.device, residual.dtype)
        residual.add_(left)
        before = self._before.get(name, _Kept()).residual
        if before is not None and before is not residual:
            before.add_(left.to(before.device))

    def _residual(self, name: str) -> torch.Tensor:
        residual = self._kept.get(name, _Kept()).residual
        if residual is None:
            raise InvalidArgumentError(f"{name!r} has no residual to which a message could be added")
        return residual

    def _decoded(self, name: str, encoded: Encoded) -> torch.Tensor:
        """What the receiver makes of a message, on the device of the residual."""
        residual, dtype = self._residual(name), self._kept[name].dtype
        like = torch.empty((), dtype=dtype or residual.dtype, device="cpu").expand(residual.shape)
        return decode(encoded, like).to(residual.device)

    def forget(self, names: Iterable[str] | None = None) -> None:
        """Drops residuals and states of parameters, or of all, for example when they were given new values."""
        for name in list(self._kept) if names is None else list(names):
            self._kept.pop(name, None)
            self._before.pop(name, None)

    def has_residual(self, name: str) -> bool:
        """Whether a parameter has a residual."""
        return self._kept.get(name, _Kept()).residual is not None

    def residual(self, name: str) -> torch.Tensor | None:
        """A copy of the residual of a parameter; None if it has none."""
        kept = self._kept.get(name, _Kept())
        return None if kept.residual is None else kept.residual.clone()

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Residuals and states of codecs by parameter: copies, made of plain values and tensors."""
        return {
            "residuals": {
                name: kept.residual.clone() for name, kept in self._kept.items() if kept.residual is not None
            },
            "states": {name: {**kept.state} for name, kept in self._kept.items() if kept.state},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state of `state_dict`, and drops what was kept. Raises `InvalidArgumentError` if it is no
        such state, and changes nothing then."""
        residuals, states = state.get("residuals"), state.get("states")
        if not isinstance(residuals, Mapping) or not isinstance(states, Mapping):
            raise InvalidArgumentError("the state of error feedback has 'residuals' and 'states'")
        if not all(isinstance(each, torch.Tensor) and each.dtype in FLOATS for each in residuals.values()):
            raise InvalidArgumentError("a residual is no tensor of floats")
        if not all(isinstance(each, Mapping) for each in states.values()):
            raise InvalidArgumentError("the state of a codec is no dict")
        self._before.clear()
        self._kept = {
            name: _Kept(
                residuals[name].detach().clone(memory_format=torch.contiguous_format) if name in residuals else None,
                state=dict(states.get(name, {})),
            )
            for name in {**residuals, **states}
        }


def _with_residual(
    name: str, gradient: torch.Tensor, residual: torch.Tensor | None, spare: torch.Tensor | None
) -> torch.Tensor:
    """The sum of a gradient and what was left out before it, in `spare` if that fits."""
    if residual is not None and residual.shape != gradient.shape:
        raise InvalidArgumentError(
            f"the residual of {name!r} has shape {tuple(residual.shape)}, its gradient {tuple(gradient.shape)}: "
            "forget() it first"
        )
    work = work_dtype(gradient.dtype)
    fits = spare is not None and (spare.shape, spare.dtype, spare.device) == (gradient.shape, work, gradient.device)
    left = spare if spare is not None and fits else torch.empty(gradient.shape, dtype=work, device=gradient.device)
    left.copy_(gradient)
    if residual is not None:
        left.add_(residual.to(left.device))
    checks.refuse_non_finite(checks.finite(left), "error feedback")
    return left
