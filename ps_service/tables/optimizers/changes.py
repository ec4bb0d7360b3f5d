"""Changes of the options of a table's optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ps_service.tables.optimizers.rules import make_rule
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_service.tables.optimizers.rule import RowRule
    from ps_wire.tables.options import RowOptimizer


def with_options(rule: RowRule, dim: int, options: Mapping[str, Any]) -> RowOptimizer:
    """The options of an optimizer with some of them changed.

    Args:
        rule: How rows are updated now.
        dim: Width of a row.
        options: The new values.

    Raises:
        InvalidArgumentError: There is no such option, its value is not allowed, or it decides what rows keep.
    """
    try:
        changed: RowOptimizer = dataclasses.replace(rule.options, **options)
    except TypeError as error:
        raise InvalidArgumentError(f"{type(rule.options).__name__}: {error}") from None
    if make_rule(changed, dim).widths != rule.widths:
        raise InvalidArgumentError("momentum can not be switched on or off once the table has been made")
    return changed
