"""Records one step of the training as a chrome trace, and draws it.

python -m examples.word_language_model.trace --picture docs/word-language-model-step.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from examples.plan import Plan
from examples.word_language_model import corpus, trace_picture
from examples.word_language_model.corpus import chunks, columns
from examples.word_language_model.distributed import DistributedSide
from examples.word_language_model.members import together
from examples.word_language_model.settings import Settings

UNRECORDED = 30
"""Steps before the recorded one: connections are open and memory is allocated then."""

TAKES = "ten to thirty seconds"


def record(path: Path, settings: Settings) -> None:
    """Trains some steps in two processes, and writes the trace of the last one.

    Args:
        path: The file; its directory is there.
        settings: Sizes and seed.
    """
    text = corpus.load(settings.vocabulary)
    torch.manual_seed(settings.seed)
    # Two processes compute, on machines with few cores as well.
    torch.set_num_threads(1)
    with together(settings.seed) as ps:
        side = DistributedSide(ps, len(text.words), settings)
        hidden = side.model.nothing_read(settings.batch_size)
        pieces = chunks(columns(text.train, settings.batch_size), settings.bptt)
        for data, target in pieces[:UNRECORDED]:
            _, hidden = side.step(data, target, hidden)
        with profile(activities=[ProfilerActivity.CPU]) as prof:
            side.step(*pieces[UNRECORDED], hidden)
    prof.export_chrome_trace(str(path))


def main(arguments: list[str] | None = None) -> None:
    """Records and draws."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.word_language_model.trace", description="Records one step and draws it."
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="directory for the trace")
    parser.add_argument("--picture", type=Path, help="the PNG; beside the trace if it is not given")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "word_language_model_step.json"
    print(Plan(TAKES), flush=True)
    record(path, Settings())
    picture = options.picture or path.with_suffix(".png")
    trace_picture.draw(picture, json.loads(path.read_text()))
    print(f"{path}: open it in chrome://tracing or https://ui.perfetto.dev\n{picture}")


if __name__ == "__main__":
    main()
