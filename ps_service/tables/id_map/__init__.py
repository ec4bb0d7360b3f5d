"""From ids to rows."""

from ps_service.tables.id_map.id_map import IdMap, make_id_map
from ps_service.tables.id_map.layout import MOST_ROWS

__all__ = ["MOST_ROWS", "IdMap", "make_id_map"]
