"""Torch's operators as Python objects, made before several threads need them.

Code that sees operations (`__torch_dispatch__` of a mode or of a class of tensors) gets such an object. Torch makes it
when the operation is seen for the first time, and its dispatcher keeps a pointer to it without a reference. If two
threads are the first at the same time, each makes one, the second takes the place of the first, which is freed, and the
process ends with a segmentation fault at the next such operation.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

import torch

_RESOLVING: Final = threading.Lock()
_known: set[str] = set()


def resolve(again: bool = False) -> None:
    """Makes the objects of all operators that are registered, in 0.15 s, before threads begin that may see operations.

    Later calls do nothing, unless they are to do it `again`, because libraries were imported that have own operators.
    """
    if _known and not again:
        return
    with _RESOLVING:
        fresh = set(torch._C._dispatch_get_all_op_names()) - _known  # type: ignore[no-untyped-call, unused-ignore]
        for name in fresh:
            _make(name)
        _known.update(fresh)


def _make(name: str) -> None:
    namespace, _, operator = name.partition("::")
    operator, _, overload = operator.partition(".")
    with suppress(AttributeError):  # it has no object: it was taken back, or takes what Python cannot have
        getattr(getattr(getattr(torch.ops, namespace), operator), overload or "default")
