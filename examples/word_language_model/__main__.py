"""Runs the whole example: the owner, the training, the report and the picture."""

from __future__ import annotations

import platform
import signal
import sys
from dataclasses import asdict, replace

import torch

from examples.plan import Plan, shorter
from examples.word_language_model import corpus, picture
from examples.word_language_model.check import TOLERANCE, CheckedSide
from examples.word_language_model.corpus import Corpus
from examples.word_language_model.distributed import DistributedSide
from examples.word_language_model.local import LocalSide
from examples.word_language_model.members import together
from examples.word_language_model.report import Report
from examples.word_language_model.settings import Settings, parse
from examples.word_language_model.training import Epoch, train
from trainer_client import PsError

TAKES = "one to two minutes"


def run(settings: Settings, text: Corpus) -> Report:
    """Trains in two processes, and prints each epoch; the other process has ended afterwards.

    Raises:
        PsError: The other process did not join in time, or failed.
    """
    words = len(text.words)
    torch.manual_seed(settings.seed)
    with together(settings.seed) as ps:
        side = DistributedSide(ps, words, settings)
        checked = CheckedSide(side, LocalSide(words, settings)) if settings.check_local else None
        epochs = []
        for epoch in train(checked or side, text, settings):
            epochs.append(epoch)
            print(_line(epoch), flush=True)
    return _report(settings, text, epochs, checked)


def _line(epoch: Epoch) -> str:
    held_out = f"perplexity of what is held out {epoch.held_out_perplexity:8.1f}"
    if epoch.train_perplexity is None:
        return f"untrained  {held_out}"
    speed = f"{epoch.steps} steps in {epoch.seconds:.1f} s"
    return f"epoch {epoch.number:3}  {held_out}   learnt {epoch.train_perplexity:8.1f}   lr {epoch.lr:g}   {speed}"


def _report(settings: Settings, text: Corpus, epochs: list[Epoch], checked: CheckedSide | None) -> Report:
    chosen = {name: value for name, value in asdict(settings).items() if name not in ("out", "check_local")}
    return Report(
        settings=chosen,
        python=platform.python_version(),
        words={"learnt": len(text.train), "held_out": len(text.held_out), "vocabulary": len(text.words)},
        unknown=text.unknown,
        unigram_perplexity=text.unigram_perplexity(),
        epochs=epochs,
        difference=checked.difference if checked else None,
        compared=checked.compared if checked else 0,
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the example and returns its exit code."""
    settings = parse(arguments)
    plan = Plan(TAKES, settings.check_local or shorter(settings, "epochs"), settings.out)
    settings = replace(settings, out=plan.folder)
    if settings.check_local:
        # Two processes draw other random numbers than one.
        settings = replace(settings, dropout=0.0)
    # A signal to this process ends the other one, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    text = corpus.load(settings.vocabulary)
    print(f"{len(text.train):,} words to learn, {len(text.held_out):,} held out, {len(text.words):,} in the vocabulary")
    print(plan)
    print(f"word frequencies alone give a perplexity of {text.unigram_perplexity():.1f}", flush=True)
    try:
        report = run(settings, text)
    except (PsError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing is left running")
        return 130
    report.write(settings.out / "word_language_model.json")
    picture.draw(settings.out / "word_language_model.png", report)
    print(f"figures {settings.out / 'word_language_model.json'}, picture {settings.out / 'word_language_model.png'}")
    return _verdict(report)


def _verdict(report: Report) -> int:
    """Prints whether local training gave the same losses, and returns the exit code."""
    if report.difference is None:
        return 0
    print(
        f"in {report.compared} steps no loss differed from that of local training by more than {report.difference:.1e}"
    )
    return 0 if report.difference <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
