"""What owners under attack host, beside the classes of other tests."""

from __future__ import annotations

from ps_service import hosted, remote


@hosted
class Vault:
    """Has methods for some roles only."""

    def __init__(self) -> None:
        self.opened = 0

    @remote
    def look(self) -> int:
        """For trainers."""
        return self.opened

    @remote(role="admin")
    def unlock(self) -> int:
        """For admins."""
        self.opened += 1
        return self.opened

    def secret(self) -> int:
        """For nobody."""
        self.opened += 1
        return self.opened
