"""Text that is part of every Python: the manual's pages for ``help()``, as streams of words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Final

import torch
from torch import Tensor

UNKNOWN: Final = "<unk>"
END: Final = "<eop>"
"""Ends a paragraph."""

HELD_OUT: Final = 0.1

_BLANK_LINE = re.compile(r"\n\s*\n")
# A word, or a sign that may be repeated: the manual underlines its headings with rows of stars and dashes.
_WORD = re.compile(r"\w+|([^\w\s])\1*")


@dataclass(frozen=True)
class Corpus:
    """Text as numbers.

    Attributes:
        words: The vocabulary, the most frequent word first after ``<unk>`` and ``<eop>``.
        train: The training text, ``[N]`` int64.
        held_out: The held-out text, ``[M]`` int64.
    """

    words: tuple[str, ...]
    train: Tensor
    held_out: Tensor

    @property
    def unknown(self) -> float:
        """The share of held-out words that are not in the vocabulary, from 0 to 1."""
        return (self.held_out == 0).double().mean().item()

    def unigram_perplexity(self) -> float:
        """Perplexity of the held-out words under a model that knows only the frequencies of words."""
        counts = torch.bincount(self.train, minlength=len(self.words)).double() + 1
        return math.exp(-(counts / counts.sum()).log()[self.held_out].mean().item())


def load(vocabulary: int, pages: Mapping[str, str] = topics) -> Corpus:
    """Splits pages into words, numbers them, and holds some out.

    Paragraphs that occur on several pages are used once, so that the training text holds no held-out paragraph. The
    last tenth of each page's paragraphs is held out. The vocabulary is made from the others.

    Args:
        vocabulary: Number of words with an index of their own; two of them are ``<unk>`` and ``<eop>``.
        pages: The text by the page's name; the pages of this Python's manual unless given.

    Raises:
        ValueError: The vocabulary is too small to hold any word.
    """
    if vocabulary < 3:
        raise ValueError(f"a vocabulary of {vocabulary} holds no word")
    train: list[str] = []
    held_out: list[str] = []
    for paragraphs in _pages(pages):
        kept = len(paragraphs) - round(HELD_OUT * len(paragraphs))
        for place, paragraph in enumerate(paragraphs):
            (train if place < kept else held_out).extend(paragraph)
    counts = Counter(word for word in train if word != END)
    words = (UNKNOWN, END, *(word for word, _ in counts.most_common(vocabulary - 2)))
    numbers = {word: number for number, word in enumerate(words)}
    return Corpus(words, _numbered(train, numbers), _numbered(held_out, numbers))


def columns(stream: Tensor, count: int) -> Tensor:
    """Splits a stream of words into columns of the same length, which are read in parallel; the rest is left out.

    Args:
        stream: ``[N]``.
        count: Number of columns.

    Returns:
        ``[N // count, count]``; each column is read downwards.

    Raises:
        ValueError: The stream is too short to predict one word per column.
    """
    rows = len(stream) // count
    if rows < 2:
        raise ValueError(f"{len(stream)} words are too few for {count} columns")
    return stream[: rows * count].view(count, rows).t().contiguous()


def chunks(table: Tensor, bptt: int) -> list[tuple[Tensor, Tensor]]:
    """Splits columns into consecutive pieces.

    Args:
        table: ``[rows, columns]``.
        bptt: Rows per piece; the last one may be shorter.

    Returns:
        For each piece the words, ``[<=bptt, columns]``, and the words that follow each of them, of the same shape.
    """
    starts = range(0, len(table) - 1, bptt)
    ends = (min(start + bptt, len(table) - 1) for start in starts)
    return [(table[start:end], table[start + 1 : end + 1]) for start, end in zip(starts, ends, strict=True)]


def _pages(pages: Mapping[str, str]) -> Iterable[list[list[str]]]:
    """The paragraphs of each page that occur on no earlier page, as words."""
    seen: set[tuple[str, ...]] = set()
    for name in sorted(pages):
        fresh = []
        for text in _BLANK_LINE.split(pages[name]):
            paragraph = [match[0] for match in _WORD.finditer(text.lower())]
            if paragraph and tuple(paragraph) not in seen:
                seen.add(tuple(paragraph))
                fresh.append([*paragraph, END])
        yield fresh


def _numbered(words: list[str], numbers: Mapping[str, int]) -> Tensor:
    return torch.tensor([numbers.get(word, 0) for word in words], dtype=torch.int64)
