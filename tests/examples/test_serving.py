"""The example of a recommender that is served while it is trained."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import torch

import ps_reader
import trainer_client as tc
from examples.serving import catalogue
from examples.serving.app import recommended
from examples.serving.trainer import train
from tests.forking.process import Forking
from tests.waiting import pauses


def asked(url: str, method: str = "GET") -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=60) as answer:
        text = answer.read().decode()
        return json.loads(text) if answer.headers.get_content_type() == "application/json" else text


async def test_recommendations_follow_the_season_and_rows_that_go_are_not_served(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    async with tc.local() as ps:
        listeners = await ps.table("listeners", dim=8, optimizer=tc.tables.LazyAdam(lr=0.05))
        songs = await ps.table("songs", dim=8, optimizer=tc.tables.LazyAdam(lr=0.05))
        for season in (0, 1):
            liked = 0.0
            while liked < 0.8:  # as long as this machine needs
                await train(ps, listeners, songs, season, 0.3, generator)
                await ps.export(tmp_path)
                with ps_reader.open(tmp_path) as reader:
                    best = [recommended(reader.current, each, 1)[0] for each in range(catalogue.LISTENERS)]
                liked = sum(
                    song["genre"] == catalogue.favourite_of(each, season) for each, song in enumerate(best)
                ) / len(best)
            gone = [song["song"] for song in best]
            await songs.remove(torch.tensor(gone))
            await ps.export(tmp_path)
            with ps_reader.open(tmp_path) as reader:
                served = {song["song"] for song in recommended(reader.current, 7, 1000)}
                assert served and not served & set(gone)
                assert recommended(reader.current, 10_000, 3) == []


@pytest.mark.usefixtures("forked_programs")
def test_the_page_is_served_and_goes_back(forking: Forking) -> None:
    with forking.start("examples.serving", "--port", "0", "--every", "0.05", "--season", "1") as process:
        while not (line := process.stdout.readline()).startswith("the page is at "):
            assert line
        url = line.split()[-1]
        assert "What to listen to" in asked(url)
        for pause in pauses(0.05):
            if len((told := asked(f"{url}/listeners/7/songs?count=3"))["versions"]) >= 3:
                break
            time.sleep(pause)
        assert len(told["songs"]) == 3 and told["age"] >= 0
        oldest = told["versions"][0]
        try:
            assert asked(f"{url}/versions/{oldest}", "POST") == {"version": oldest}
        except HTTPError as error:  # it may have gone meanwhile
            assert error.code == 404
        assert asked(f"{url}/versions/oldest", "POST")["version"] >= oldest
        assert asked(f"{url}/versions/newest/follow", "POST")["version"] >= told["version"]
        for wrong in ("listeners/240/songs", "versions/0"):
            with pytest.raises(HTTPError, match="404"):
                asked(f"{url}/{wrong}", "POST" if "versions" in wrong else "GET")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def test_songs_come_and_go_with_the_seasons() -> None:
    plays = catalogue.play(3, 5000, torch.Generator().manual_seed(1))
    songs = set(plays.songs.tolist())
    assert min(songs) == catalogue.first_song(3) == 18 and len(songs) == catalogue.SONGS
    favourite = [
        catalogue.genre_of(song) == catalogue.favourite_of(listener, 3)
        for listener, song in zip(plays.listeners.tolist(), plays.songs.tolist(), strict=True)
    ]
    liked = plays.liked[torch.tensor(favourite)]
    assert 0.85 < float(liked.mean()) < 0.95 and catalogue.title_of(7) == "blues no. 2"
