"""Reads what `ps-service export` writes: rows of tables and weights of modules, by version, without torch.

import ps_reader

with ps_reader.open("exports") as reader:
    items = reader.current.tables["items"]
    values, found = items.look_up(ids)
"""

from ps_reader.errors import ExportError
from ps_reader.reader import Reader, open
from ps_reader.tables import TableVersion
from ps_reader.version import Version

__all__ = ["ExportError", "Reader", "TableVersion", "Version", "open"]
