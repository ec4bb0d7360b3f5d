"""Songs, listeners, and what these like: it changes every season, and songs come and go."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

GENRES: Final = ("ambient", "blues", "choral", "dub", "electro", "folk")
LISTENERS: Final = 240
SONGS: Final = 120
"""How many there are at a time."""

REPLACED: Final = 6
"""How many songs go, and come, with each season: one of each genre."""


class Plays(NamedTuple):
    """What was played: listeners and songs, int64 [n], and whether they liked it, float32 [n]."""

    listeners: torch.Tensor
    songs: torch.Tensor
    liked: torch.Tensor


def genre_of(song: int) -> str:
    """The genre of a song."""
    return GENRES[song % len(GENRES)]


def title_of(song: int) -> str:
    """What the page calls it."""
    return f"{genre_of(song)} no. {song // len(GENRES) + 1}"


def favourite_of(listener: int, season: int) -> str:
    """The genre that a listener likes in a season."""
    return GENRES[(listener + season) % len(GENRES)]


def first_song(season: int) -> int:
    """The oldest song of a season. It has this one and the `SONGS - 1` that follow."""
    return season * REPLACED


def play(season: int, count: int, generator: torch.Generator) -> Plays:
    """Draws plays. A song of the favourite genre is liked nine times in ten, and others once."""
    listeners = torch.randint(LISTENERS, (count,), generator=generator)
    songs = first_song(season) + torch.randint(SONGS, (count,), generator=generator)
    is_favourite = (listeners + season) % len(GENRES) == songs % len(GENRES)
    chance = torch.where(is_favourite, 0.9, 0.1)
    return Plays(listeners, songs, torch.bernoulli(chance, generator=generator))
