"""Serves recommendations of an export, with a page: `uvicorn examples.serving.app:app` with EXPORT=folder."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse

import ps_reader
from examples.serving.catalogue import LISTENERS, genre_of, title_of

PAGE = Path(__file__).with_name("page.html").read_text("utf-8")


@lru_cache(maxsize=8)
def songs_of(version: ps_reader.Version) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all songs of a version, and their rows."""
    songs = version.tables["songs"]
    ids = songs.ids()
    return ids, songs.look_up(ids)[0]


def recommended(version: ps_reader.Version, listener: int, count: int) -> list[dict[str, Any]]:
    """The songs that a listener likes best, by a version."""
    taste, found = version.tables["listeners"].look_up([listener])
    ids, rows = songs_of(version)
    if not found[0] or not len(ids):
        return []
    scores = rows @ taste[0]
    best = np.argsort(-scores)[:count]
    chances = 1 / (1 + np.exp(-scores[best]))
    return [
        {"song": int(id), "title": title_of(int(id)), "genre": genre_of(int(id)), "chance": round(float(each), 3)}
        for id, each in zip(ids[best], chances, strict=True)
    ]


def make_app(folder: str | Path) -> FastAPI:
    """An app that serves what is in the folder of an export, and what comes into it."""
    reader = ps_reader.open(folder, every=0.05)
    made = FastAPI(title="What to listen to")

    @made.get("/", response_class=HTMLResponse)
    def page() -> str:
        return PAGE

    @made.get("/listeners/{listener}/songs")
    def songs(listener: int, count: int = 10) -> dict[str, Any]:
        if not 0 <= listener < LISTENERS:
            raise HTTPException(404, f"there are listeners 0 to {LISTENERS - 1}")
        version, versions = reader.current, reader.versions()
        is_newest = version.number >= max(versions, default=0)
        return {
            "version": version.number,
            "age": round(reader.age if is_newest else time.time() - version.as_of, 3),
            "versions": versions,
            "songs_there": len(version.tables["songs"]),
            "songs": recommended(version, listener, min(max(count, 1), 100)),
        }

    @made.post("/versions/oldest")
    def rollback_to_oldest() -> dict[str, int]:
        for version in reader.versions():  # the first one may be removed at this moment
            with suppress(ps_reader.ExportError):
                return {"version": reader.rollback(version).number}
        raise HTTPException(404, "there is no earlier version")

    @made.post("/versions/{version}")
    def rollback(version: int) -> dict[str, int]:
        try:
            return {"version": reader.rollback(version).number}
        except ps_reader.ExportError as error:
            raise HTTPException(404, str(error)) from None

    @made.post("/versions/newest/follow")
    def follow() -> dict[str, int]:
        return {"version": reader.follow().number}

    return made


if "EXPORT" in os.environ:
    app = make_app(os.environ["EXPORT"])
