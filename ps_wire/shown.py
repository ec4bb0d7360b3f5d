"""Values in error messages."""

from __future__ import annotations

from typing import Any, Final

_MOST: Final = 200


def shown(value: Any) -> str:
    """The `repr` of a value, cut at 200 characters; its type where that fails, as of a tensor with a dtype that torch
    cannot print, or of a quantized one that it cannot dequantize."""
    try:
        text = repr(value)
    except Exception:  # it may be of any class
        return f"a value of the type {type(value).__name__}"
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"
