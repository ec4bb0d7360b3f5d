"""Optimizers that change the rows that have a gradient, and no others."""

from ps_service.tables.optimizers.changes import with_options
from ps_service.tables.optimizers.rule import Rates, RowRule
from ps_service.tables.optimizers.rules import make_rule

__all__ = ["Rates", "RowRule", "make_rule", "with_options"]
