"""An LSTM encoder-decoder (Sutskever, Vinyals and Le, Sequence to Sequence Learning
with Neural Networks, 2014) with attention (Luong, Pham and Manning, Effective
Approaches to Attention-based Neural Machine Translation, 2015, global, general)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Seq2Seq(nn.Module):
    """Token numbers (N, S) and (N, T) to logits (N, T, vocabulary).

    Token 0 is padding: no attention is paid to it.
    """

    def __init__(
        self, vocabulary: int = 8000, width: int = 512, layers: int = 2
    ) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width, padding_idx=0)
        self.target = nn.Embedding(vocabulary, width, padding_idx=0)
        self.encoder = nn.LSTM(width, width, layers, batch_first=True)
        self.decoder = nn.LSTM(width, width, layers, batch_first=True)
        self.attention = nn.Linear(width, width, bias=False)
        self.joined = nn.Linear(2 * width, width, bias=False)
        self.projection = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        encoded, state = self.encoder(self.source(source))
        decoded, _ = self.decoder(self.target(target), state)
        scores = torch.bmm(self.attention(decoded), encoded.transpose(1, 2))
        scores = scores.masked_fill((source == 0).unsqueeze(1), float("-inf"))
        context = torch.bmm(scores.softmax(2), encoded)
        attended = torch.tanh(self.joined(torch.cat([context, decoded], 2)))
        return self.projection(attended)


LONGEST = 512


class Translator(nn.Module):
    """An encoder-decoder transformer (Vaswani et al., Attention Is All You Need, 2017).

    Source (N, S) and target (N, T) words, padded with 0, to logits
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
