"""What a data directory keeps of the owner's place in a group whose directory has several keepers."""

from __future__ import annotations

import json
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from ps_service.durability import files
from ps_wire.regular_files import NotRegularError, open_regular

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FILE: Final = "place.json"


class Place(NamedTuple):
    """The number of an owner, the name of the keeper that it is, empty if it is none, where the keepers were last, by
    their names, and the epoch of the last start. The next one has a higher epoch, also if a majority of the keepers was
    started again, and knows of none."""

    number: int | None = None
    keeper: str = ""
    keepers: Mapping[str, str] = MappingProxyType({})
    epoch: int = 0

    @classmethod
    def read(cls, folder: Path) -> Place:
        """What stands in a data directory. One that was never in such a group has no place."""
        try:
            with open_regular(folder / _FILE) as file:
                found = json.loads(file.read())
                keepers = {str(name): str(address) for name, address in found.get("keepers", {}).items()}
                return cls(int(found["number"]), str(found["keeper"]), keepers, int(found.get("epoch", 0)))
        except (FileNotFoundError, NotRegularError, ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def write(self, folder: Path) -> None:
        """Writes it into a data directory. Raises `OSError` if it cannot."""
        growing = folder / f".{_FILE}-{os.getpid()}"
        growing.unlink(missing_ok=True)
        files.write_file(growing, json.dumps({**self._asdict(), "keepers": dict(self.keepers)}).encode())
        os.replace(growing, folder / _FILE)
        files.sync_folder(folder)
