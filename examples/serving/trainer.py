"""Trains the taste of listeners, season after season: `python -m examples.serving.trainer --season 10`."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

import torch
from torch.nn import functional as F

import trainer_client as tc
from examples.serving.catalogue import play

BATCH = 512


async def main(arguments: Sequence[str] | None = None) -> None:
    """Trains with the owners in PS_ADDRESS, until it has had as many seasons as it was told."""
    parser = argparse.ArgumentParser(description="Trains the taste of listeners.")
    parser.add_argument("--season", type=float, default=10.0, help="seconds of a season")
    parser.add_argument("--seasons", type=int, default=0, help="how many; 0 goes on")
    told = parser.parse_args(arguments)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    async with tc.connect() as ps:
        listeners = await ps.table("listeners", dim=8, optimizer=tc.tables.LazyAdam(lr=0.05))
        # A song that nobody plays any more is out of the catalogue: its row goes, and with it what is served.
        songs = await ps.table(
            "songs",
            dim=8,
            optimizer=tc.tables.LazyAdam(lr=0.05),
            evict=tc.tables.Eviction(ttl=told.season / 2, spare=0.0),
        )
        season = 0
        while not told.seasons or season < told.seasons:
            loss = await train(ps, listeners, songs, season, told.season, generator)
            print(f"season {season}: loss {loss:.3f}", flush=True)
            season += 1


async def train(
    ps: tc.Client, listeners: tc.Table, songs: tc.Table, season: int, seconds: float, generator: torch.Generator
) -> float:
    """Trains for a season; the last loss."""
    until, loss = time.monotonic() + seconds, torch.tensor(0.0)
    while time.monotonic() < until:
        plays = play(season, BATCH, generator)
        async with ps.context() as ctx:
            rows = await ps.look_up({listeners: plays.listeners, songs: plays.songs})
            scores = (rows[listeners] * rows[songs]).sum(1)
            loss = F.binary_cross_entropy_with_logits(scores, plays.liked)
            await ctx.backward(loss, step=[listeners.optimizer, songs.optimizer])
    return loss.item()


if __name__ == "__main__":
    asyncio.run(main())
