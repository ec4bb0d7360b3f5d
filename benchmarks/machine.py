"""Describes the machine of the measurements."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.sides import shared_memory


def describe(torch_threads: int) -> dict[str, Any]:
    """Hardware, versions, and settings of the processes."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "grpcio": _version("grpcio"),
        "protobuf": _version("protobuf"),
        "uvloop": _version("uvloop"),
        "torch_threads": torch_threads,
        "threads": f"every process of every side: OMP_NUM_THREADS={torch_threads}; "
        "pools of owners and TensorPipe's 16 threads as they choose themselves",
        "shared_memory": shared_memory.known_to_client() and shared_memory.known_to_owner(),
        # Above about 0.5 other programs were running, and the figures are less reliable.
        "load_before": round(os.getloadavg()[0], 2),
    }


def line(machine: dict[str, Any]) -> str:
    """The description in one line, for people."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB, {machine['kernel']}, "
        f"Python {machine['python']}, torch {machine['torch']}, grpcio {machine['grpcio']}, "
        f"{machine['torch_threads']} torch thread{'s' * (machine['torch_threads'] > 1)} per process, "
        f"load before {machine['load_before']:g}"
    )


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for text in info.read_text().splitlines():
            key, _, value = text.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
