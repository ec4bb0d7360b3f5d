"""Answers programs that use a result before it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn


class Unawaited:
    """A base of results that may not be there yet: what only the value could do says what is missing."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a checker of types knows which names there are

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"this result has no {name!r} before it has come: {_REMEDY}")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        name = getattr(function, "__name__", "this function")
        raise TypeError(f"{name} was given a result that may not have come yet: {_REMEDY}")

    def _refuse(self, *args: object) -> NoReturn:
        raise TypeError(f"this result cannot be computed with before it has come: {_REMEDY}")

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError(f"this result cannot be called before it has come: {_REMEDY}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __mod__ = __neg__ = __abs__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __getitem__ = __len__ = __iter__ = __float__ = __int__ = __index__ = _refuse


_REMEDY = "`await` it first, or call wait() in a program without asyncio"
