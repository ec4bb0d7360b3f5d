"""What a run of the example comes to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.word_language_model.training import Epoch


@dataclass(frozen=True)
class Report:
    """The figures of one run, as they stand in ``word_language_model.json``.

    Attributes:
        settings: What was chosen, by name.
        python: Version of Python, whose manual is the text.
        words: Words learnt from, words held out, and words in the vocabulary.
        unknown: The share of held-out words that are not in the vocabulary.
        unigram_perplexity: Perplexity of the held-out words under a model that knows only their frequencies.
        epochs: The figures of each epoch; the first are those of the model as it began.
        difference: The largest difference between the losses of a step and a local model's; None without such a model.
        compared: How many steps were compared.
    """

    settings: dict[str, int | float]
    python: str
    words: dict[str, int]
    unknown: float
    unigram_perplexity: float
    epochs: list[Epoch]
    difference: float | None
    compared: int

    def write(self, path: Path) -> None:
        """Writes the figures as JSON, with a line per field and epoch; directories are made."""
        epochs = ",\n".join(f"    {json.dumps(asdict(epoch))}" for epoch in self.epochs)
        fields = {name: json.dumps(value) for name, value in asdict(self).items()} | {"epochs": f"[\n{epochs}\n  ]"}
        lines = ",\n".join(f"  {json.dumps(name)}: {value}" for name, value in fields.items())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{{\n{lines}\n}}\n")
