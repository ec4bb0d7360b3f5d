"""The IDX format of the original MNIST files: a magic number, the sizes, then the bytes."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

IMAGES_MAGIC = 0x0803
LABELS_MAGIC = 0x0801


class IdxError(ValueError):
    """A file is missing, or is not a valid IDX file of its kind."""


def read_images(directory: Path, stem: str) -> Tensor:
    """Reads ``STEM`` or ``STEM.gz`` as images.

    Returns:
        ``[N, rows, columns]`` uint8.

    Raises:
        IdxError: the file is missing, damaged, or does not hold images.
    """
    return _read(directory, stem, IMAGES_MAGIC, axes=3)


def read_labels(directory: Path, stem: str) -> Tensor:
    """Reads ``STEM`` or ``STEM.gz`` as labels.

    Returns:
        ``[N]`` int64.

    Raises:
        IdxError: the file is missing, damaged, or does not hold labels.
    """
    return _read(directory, stem, LABELS_MAGIC, axes=1).long()


def _read(directory: Path, stem: str, magic: int, axes: int) -> Tensor:
    path = _find(directory, stem)
    content = _content(path)
    header = 4 + 4 * axes
    if len(content) < header:
        raise IdxError(f"{path} is cut off: its header takes {header} bytes, it holds {len(content)}")
    found, *shape = struct.unpack(f">{1 + axes}I", content[:header])
    if found != magic:
        raise IdxError(f"{path} starts with {found:#010x}; this kind of file starts with {magic:#010x}")
    expected = int(np.prod(shape, dtype=object))
    if len(content) - header != expected:
        raise IdxError(f"{path} should hold {expected} bytes after its header, it holds {len(content) - header}")
    # frombuffer would share read-only memory with the file's bytes, which torch warns about.
    values = np.frombuffer(content, dtype=np.uint8, offset=header).copy()
    return torch.from_numpy(values).reshape(shape)


def _find(directory: Path, stem: str) -> Path:
    # Some mirrors write a dot where the original has a dash: train-images.idx3-ubyte.
    names = [stem, f"{stem}.gz", stem.replace("-idx", ".idx"), f"{stem.replace('-idx', '.idx')}.gz"]
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise IdxError(f"no {stem} (or {stem}.gz) in {directory}")


def _content(path: Path) -> bytes:
    raw = path.read_bytes()
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise IdxError(f"{path} is not a whole gzip file: {error}") from error
