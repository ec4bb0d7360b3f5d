"""The text of the word language model: split, numbered, and cut into pieces."""

from __future__ import annotations

import pytest
import torch

from examples.word_language_model.corpus import END, UNKNOWN, chunks, columns, load


def paragraphs(*words: str) -> str:
    """A page with a paragraph for each word."""
    return "\n\n".join(words)


def test_the_last_tenth_of_each_page_is_held_out() -> None:
    text = load(50, {"a": paragraphs(*(f"a{i}" for i in range(10))), "b": paragraphs(*(f"b{i}" for i in range(20)))})
    numbers = {word: number for number, word in enumerate(text.words)}
    learnt = [f"a{i}" for i in range(9)] + [f"b{i}" for i in range(18)]
    assert [text.words[number] for number in text.train[::2]] == learnt
    assert (text.train[1::2] == numbers[END]).all()
    # What is held out was never seen, so the vocabulary does not have it.
    assert text.held_out.tolist() == [numbers[UNKNOWN], numbers[END]] * 3
    assert text.unknown == 0.5


def test_a_paragraph_that_stands_on_two_pages_is_taken_once() -> None:
    text = load(50, {"a": paragraphs("one two", "three"), "b": paragraphs("One\n  TWO", "four")})
    assert [text.words[number] for number in text.train] == ["one", "two", END, "three", END, "four", END]


def test_the_vocabulary_has_the_most_frequent_words() -> None:
    text = load(4, {"a": "x y y z z z ---- z"})
    assert text.words == (UNKNOWN, END, "z", "y")
    assert text.train.tolist() == [0, 3, 3, 2, 2, 2, 0, 2, 1]


def test_a_vocabulary_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no word"):
        load(2)


def test_few_held_out_words_of_the_manual_are_unknown() -> None:
    text = load(2000)
    assert len(text.words) == 2000
    assert len(text.train) > 50_000
    assert len(text.held_out) > 5_000
    assert 0 < text.unknown < 0.2
    assert 100 < text.unigram_perplexity() < 1000


def test_columns_go_on_below_and_chunks_follow_each_other() -> None:
    table = columns(torch.arange(23), 2)
    assert table.t().tolist() == [list(range(11)), list(range(11, 22))]
    pieces = chunks(table, 4)
    assert [data[:, 0].tolist() for data, _ in pieces] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert all(torch.equal(target, data + 1) for data, target in pieces)


def test_too_short_a_text_is_refused() -> None:
    with pytest.raises(ValueError, match="3 words are too few for 2 columns"):
        columns(torch.arange(3), 2)
