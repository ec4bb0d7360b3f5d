"""From ids to rows."""

from ps_service.tables.id_map.id_map import IdMap, make_id_map

__all__ = ["IdMap", "make_id_map"]
