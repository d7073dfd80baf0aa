"""An encoder-decoder transformer (Vaswani et al., Attention Is All You Need, 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

LONGEST = 512


class Translator(nn.Module):
    """Source (N, S) and target (N, T) words, padded with 0, to logits
    (N, T, vocabulary) of each next word."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(LONGEST, width)
        self.transformer = nn.Transformer(
            width, heads, layers, layers, 4 * width, dropout=0.0, batch_first=True
        )
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        y = self.transformer(
            self._embed(source),
            self._embed(target),
            tgt_mask=later,
            src_key_padding_mask=source == 0,
            memory_key_padding_mask=source == 0,
        )
        return functional.linear(y, self.words.weight)

    def _embed(self, words: Tensor) -> Tensor:
        return self.words(words) + self.positions(torch.arange(words.shape[1]))
