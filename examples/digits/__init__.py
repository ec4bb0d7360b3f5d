"""Two trainers train one hosted ConvNet on handwritten digits; ``python -m examples.digits`` runs the example.

An owner that is started with ``--import examples.digits`` may host :class:`Net` under the name
``examples.digits.Net``.
"""

from __future__ import annotations

from examples.digits.net import Net

__all__ = ["Net"]
