#!/usr/bin/env python3
"""Asks an owner whether it serves: `health.py [HOST:PORT]`; the exit code is 0 only if it does.

For the health checks of Docker, Kubernetes and the like. It is run every few seconds, so it imports neither torch nor
this project; it needs grpcio and grpcio-health-checking. Without an argument it asks the owner on this host, at the
port in `PS_LISTEN`. If that serves over TLS, its variables name the certificates: `PS_TLS_CA` (or `PS_TLS_CLIENT_CA`),
`PS_TLS_CERT` and `PS_TLS_KEY`; and `PS_TLS_SERVER_NAME`, if the certificate does not have the address.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEFAULT_LISTEN = "127.0.0.1:50051"
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def beside(listen: str) -> str:
    """The address under which a process on the same host reaches a server that listens there."""
    host, _, port = listen.rpartition(":")
    return f"{ANY_ADDRESS.get(host, host)}:{port}"


def channel_to(address: str) -> grpc.Channel:
    """A channel, over TLS if the variables name certificates."""
    ca = os.environ.get("PS_TLS_CA") or os.environ.get("PS_TLS_CLIENT_CA")
    cert, key, name = (os.environ.get(f"PS_TLS_{each}") for each in ("CERT", "KEY", "SERVER_NAME"))
    if not (ca or cert):
        return grpc.insecure_channel(address)
    authorities, key_bytes, cert_bytes = (Path(each).read_bytes() if each else None for each in (ca, key, cert))
    options = [("grpc.ssl_target_name_override", name)] if name else []
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(authorities, key_bytes, cert_bytes), options)


def trouble(address: str, timeout_seconds: float) -> str:
    """A description of what is wrong with the owner at an address; empty if it serves."""
    with channel_to(address) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_seconds)
        except grpc.RpcError as error:
            return f"no owner answers at {address}: {error.code().name}, {error.details()}"
    if reply.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
    return f"the owner at {address} takes no work: {status}; is it draining, or out of threads (see its log)?"


def main() -> int:
    """Asks the owner, prints its state, and returns the exit code."""
    parser = argparse.ArgumentParser(description="Asks an owner whether it serves; the exit code is 0 only if it does.")
    listen = os.environ.get("PS_LISTEN") or DEFAULT_LISTEN
    parser.add_argument(
        "address", nargs="?", default=beside(listen), help="host:port (default: the owner on this host)"
    )
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds to wait for an answer (default: 3)")
    options = parser.parse_args()
    wrong = trouble(options.address, options.timeout)
    print(wrong or f"the owner at {options.address} is serving", file=sys.stderr if wrong else sys.stdout)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
