import pytest
import torch

from posterity.data import Vocabulary, long_tailed
from posterity.data.text import tokens
from posterity.types import PosterityError


def test_a_long_tail_has_the_stated_sizes() -> None:
    targets = torch.arange(5).repeat_interleave(torch.tensor([120, 100, 130, 100, 150]))
    targets = targets[torch.randperm(600, generator=torch.Generator().manual_seed(0))]
    kept = long_tailed(targets, 100, torch.Generator().manual_seed(1))
    assert targets[kept].bincount().tolist() == [100, 32, 10, 3, 1]  # 100 · 100^(-c/4), rounded
    assert len(kept.unique()) == len(kept)
    assert torch.equal(kept, long_tailed(targets, 100, torch.Generator().manual_seed(1)))
    assert not torch.equal(kept, long_tailed(targets, 100, torch.Generator().manual_seed(2)))
    assert long_tailed(targets, 1.0, torch.Generator()).shape == (500,)


def test_bad_tails_are_refused() -> None:
    for targets, imbalance in ((torch.zeros(4, dtype=torch.int64), 0.5), (torch.zeros(4), 2.0)):
        with pytest.raises(PosterityError):
            long_tailed(targets, imbalance, torch.Generator())


def test_words_by_hand() -> None:
    assert tokens("It's GOOD, isn't it?") == ["it", "'", "s", "good", ",", "isn", "'", "t", "it", "?"]


def test_vocabulary_is_of_the_training_text_only() -> None:
    words = Vocabulary.fit(["b b a", "a b c", "Z"])
    assert words.words == ("<pad>", "<unknown>", "b", "a") and words.length == 3 and len(words) == 4
    numbers = words.encode(["a new b and more", "", "B"])
    assert numbers.tolist() == [[3, 1, 2], [0, 0, 0], [2, 0, 0]] and numbers.dtype == torch.int64
    assert words.decode(numbers[0]) == "a <unknown> b" and words.decode(numbers[1]) == ""
    assert words.encode(["<pad> <unknown>"]).unique().tolist() == [1]  # reserved names cannot be typed in
    with pytest.raises(PosterityError, match="got 2 empty ones"):
        Vocabulary.fit(["", "  "])
