"""What is served over HTTP, and what it needs."""

from __future__ import annotations

from typing import Final

from ps_service.access import roles
from ps_service.access.access import Point

PATHS: Final = {
    # Load balancers and Kubernetes have no tokens.
    "/healthz": Point("/healthz", roles.NOBODY),
    "/readyz": Point("/readyz", roles.NOBODY),
    # Scripts and styles, the same for everybody.
    "/static/{name}": Point("/static", roles.NOBODY),
    "/": Point("the page", roles.READER),
    "/messages": Point("the page", roles.READER),
    "/status.json": Point("/status.json", roles.READER),
    "/values.json": Point("/values.json", roles.READER),
    "/values.csv": Point("/values.csv", roles.READER),
    "/metrics": Point("/metrics", roles.READER),
}
"""What is served, by its path."""

OTHER: Final = Point("a path that is not served", roles.ADMIN)
"""All else, and other methods of these paths: also to hear that it is not there needs a role."""
