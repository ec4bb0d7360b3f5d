"""The names of the services and methods of gRPC beside the operations, and what those methods need."""

from __future__ import annotations

from typing import Final

from grpc_health.v1 import health_pb2

from ps_service.access import roles
from ps_service.access.access import Point

SERVICE: Final = "ps_wire.v1.Owner"
"""Full name of the owner's gRPC service, which health checks may name."""

HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
"""Full name of the health service itself."""

_REFLECTION: Final = "grpc.reflection.v1alpha.ServerReflection"

OTHERS: Final = {
    # Each request of a session is checked by itself.
    f"/{SERVICE}/Session": Point("Session", roles.KNOWN),
    "/ps_wire.v1.Directory/Claim": Point("Claim", roles.OWNER),
    # Probes of load balancers and of Kubernetes have no tokens. It says whether the owner serves.
    f"/{HEALTH}/Check": Point("health Check", roles.NOBODY),
    f"/{HEALTH}/Watch": Point("health Watch", roles.NOBODY),
    # It shows the protocol, as the files in proto/ do.
    f"/{_REFLECTION}/ServerReflectionInfo": Point("reflection", roles.READER),
}
"""The methods of gRPC beside the operations, and what they need."""
