"""Text as padded rows of word numbers: 0 is padding, 1 a word the training text does not know."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from posterity.types import PosterityError

PADDING, UNKNOWN = 0, 1
_WORD = re.compile(r"\w+|[^\w\s]")


def tokens(text: str) -> list[str]:
    """Lower-case words, and each punctuation mark by itself."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """The words by number, most frequent first after the two reserved numbers.

    Attributes:
        words: The word of each number.
        length: The length to which every text is padded or cut.
    """

    words: tuple[str, ...]
    length: int

    @classmethod
    def fit(cls, texts: Sequence[str], min_count: int = 2) -> Vocabulary:
        """The words of the TRAINING texts; its longest text sets the length.

        Words seen less than ``min_count`` times count as unknown, so that training meets the unknown word too.
        """
        split = [tokens(text) for text in texts]
        if not any(split):
            raise PosterityError(f"expected training texts with words in them, got {len(texts)} empty ones")
        counts = Counter(word for row in split for word in row)
        # Ties are broken by the alphabet: the numbering must not depend on the order of the examples.
        kept = sorted((word for word, n in counts.items() if n >= min_count), key=lambda word: (-counts[word], word))
        return cls(("<pad>", "<unknown>", *kept), max(len(row) for row in split))

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _number(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words) if number > UNKNOWN}

    def encode(self, texts: Iterable[str]) -> Tensor:
        """Word numbers, int64 [N, length]; longer texts are cut, shorter ones padded on the right."""
        rows = [[self._number.get(word, UNKNOWN) for word in tokens(text)[: self.length]] for text in texts]
        return torch.tensor([row + [PADDING] * (self.length - len(row)) for row in rows], dtype=torch.int64)

    def decode(self, numbers: Tensor) -> str:
        """The words of one row, without the padding."""
        return " ".join(self.words[number] for number in numbers.tolist() if number != PADDING)
