"""Look-ups a second in an export, in a dict, in a numpy array, and in Redis, by one thread."""

from __future__ import annotations

import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ps_reader
import trainer_client as tc

DIM = 16


def measure(rows: int, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Thousands of rows that each gives a second, one id at a time and 256 at once: medians of rounds, in which they
    take turns. Ids are of a Zipf distribution."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal((rows, DIM), np.float32)
    ids = rng.permutation(rows * 4)[:rows].astype(np.int64)
    asked = ids[np.minimum(rng.zipf(1.2, 1 << 16) - 1, rows - 1)]
    with tempfile.TemporaryDirectory() as folder:
        _export(folder, ids, values)
        with ps_reader.open(folder, every=3600) as reader, _sides(reader, ids, values) as sides:
            found: dict[str, dict[str, list[float]]] = {}
            for _ in range(rounds):
                for name, side in sides.items():
                    told = found.setdefault(name, {"one": [], "batch": []})
                    told["one"].append(_speed(side.one, list(map(int, asked[:4096])), 1, seconds))
                    told["batch"].append(_speed(side.batch, list(asked.reshape(-1, 256)), 256, seconds))
    return {name: {kind: statistics.median(each) for kind, each in told.items()} for name, told in found.items()}


def _export(folder: str, ids: np.ndarray, values: np.ndarray) -> None:
    with tc.local() as ps:
        table = ps.table("items", DIM)
        for low in range(0, len(ids), 65_536):
            some = slice(low, low + 65_536)
            table.upsert(torch.from_numpy(ids[some]), torch.from_numpy(values[some]))
        ps.export(folder)


class Side:
    """One of those that are compared: the row of an id, and the rows of several."""

    def __init__(self, one: Callable[[int], Any], batch: Callable[[np.ndarray], Any]) -> None:
        self.one = one
        self.batch = batch


def _speed(ask: Callable[[Any], Any], asked: list[Any], rows: int, seconds: float) -> float:
    """Thousands of rows a second."""
    ask(asked[0])
    began, count = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        for each in asked[:64]:
            ask(each)
        count += min(64, len(asked)) * rows
        asked = asked[64:] + asked[:64]
    return count / took / 1000


@contextmanager
def _sides(reader: ps_reader.Reader, ids: np.ndarray, values: np.ndarray) -> Iterator[dict[str, Side]]:
    table = reader.current.tables["items"]
    plain = {int(id): row for id, row in zip(ids, values, strict=True)}
    order = ids.argsort()
    sorted_ids, sorted_values = ids[order], values[order]
    sides = {
        "ps_reader": Side(table.__getitem__, table.look_up),
        "dict": Side(plain.__getitem__, lambda some: np.stack([plain[each] for each in some.tolist()])),
        "numpy": Side(
            lambda id: sorted_values[sorted_ids.searchsorted(id)],
            lambda some: sorted_values[np.searchsorted(sorted_ids, some)],
        ),
    }
    if shutil.which("redis-server") is None:
        yield sides
        return
    with _redis() as redis:
        for low in range(0, len(ids), 4096):
            redis.set_all(ids[low : low + 4096], values[low : low + 4096])
        sides["redis"] = Side(lambda id: redis.get(np.array([id])), redis.get)
        yield sides


class Redis:
    """A client that knows MSET and MGET, over a socket of Unix."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._file = self._socket.makefile("rb", 1 << 20)

    def set_all(self, ids: np.ndarray, values: np.ndarray) -> None:
        """Sets rows."""
        parts = [b"MSET"]
        for id, row in zip(ids, values, strict=True):
            parts += [id.tobytes(), row.tobytes()]
        self._send(parts)
        assert self._file.readline() == b"+OK\r\n"

    def get(self, ids: np.ndarray) -> np.ndarray:
        """The rows of ids, which are there."""
        self._send([b"MGET", *(id.tobytes() for id in ids.astype(np.int64))])
        assert self._file.readline() == b"*%d\r\n" % len(ids)
        found = []
        for _ in range(len(ids)):
            size = int(self._file.readline()[1:])
            found.append(self._file.read(size + 2)[:size])
        return np.frombuffer(b"".join(found), np.float32).reshape(len(ids), -1)

    def _send(self, parts: list[bytes]) -> None:
        self._socket.sendall(b"".join([b"*%d\r\n" % len(parts), *(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)]))

    def close(self) -> None:
        """Ends the connection."""
        self._file.close()
        self._socket.close()


@contextmanager
def _redis() -> Iterator[Redis]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "redis.sock"))
        command = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not Path(path).exists():
                time.sleep(0.05)
                assert server.poll() is None
            redis = Redis(path)
            yield redis
            redis.close()
        finally:
            server.terminate()
            server.wait()
