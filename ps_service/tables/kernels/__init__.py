"""The arithmetic of tables, with numba or with torch alone."""

from ps_service.tables.kernels.grouped import Grouped
from ps_service.tables.kernels.kernels import Kernels, make_kernels

__all__ = ["Grouped", "Kernels", "make_kernels"]
