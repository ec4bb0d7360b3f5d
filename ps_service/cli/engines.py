"""Makes the owner of a configuration."""

from __future__ import annotations

from dataclasses import fields

import torch

from ps_service.access.token_file import TokenFile
from ps_service.config import OwnerConfig
from ps_service.engine import Engine
from ps_service.execution.cores import SharedCores, torch_threads_of, usable_cores
from ps_service.functions.groups import Level
from ps_service.functions.torch_functions import TorchFunctions
from ps_service.hosting.allowlist import AllowList
from ps_service.quotas.quota import QuotaFile
from ps_wire.limits import MAX_SEGMENT_BYTES, Limits


def engine_of(settings: OwnerConfig) -> Engine:
    """An owner that hosts nothing yet, and the threads of torch that it uses. Raises `ImportError`, `ValueError`."""
    engine = Engine(
        name=settings.name,
        allowlist=AllowList.importing(settings.imports, TorchFunctions(Level[settings.torch_functions.upper()])),
        device=torch.device(settings.device),
        limits=_limits(settings),
        threads=settings.threads,
        spare_threads=settings.spare_threads,
        data_dir=settings.data_dir,
        tokens=None if settings.token_file is None else TokenFile(settings.token_file),
        quotas=None if settings.quota_file is None else QuotaFile(settings.quota_file),
    )
    torch_threads = settings.torch_threads or torch_threads_of(engine.compute.threads)
    if settings.share_cores:
        torch_threads = 1  # on the event loop
        engine.compute.cores = SharedCores(_set_threads, usable_cores())
    if torch_threads is not None:
        _set_threads(torch_threads)  # torch hands it on to threads that begin later
    return engine


def _set_threads(number: int) -> None:
    """Sets the number of torch's threads inside an operation, for operations that this thread calls."""
    torch.get_num_threads()  # the first call in a thread sets it to what other threads have set last
    torch.set_num_threads(number)


def _limits(settings: OwnerConfig) -> Limits:
    """The limits; those that are settings have the same names there."""
    named = {field.name for field in fields(Limits)} & OwnerConfig.model_fields.keys()
    segment_bytes = MAX_SEGMENT_BYTES if settings.shared_memory else 0
    return Limits(max_segment_bytes=segment_bytes, **settings.model_dump(include=named))
