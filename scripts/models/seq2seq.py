"""An LSTM encoder-decoder (Sutskever, Vinyals and Le, Sequence to Sequence Learning
with Neural Networks, 2014) with attention (Luong, Pham and Manning, Effective
Approaches to Attention-based Neural Machine Translation, 2015, global, general)."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn

State: TypeAlias = tuple[Tensor, Tensor]  # of an LSTM: hidden and cell, per layer


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
        encoded, state = self.encode(source)
        logits, _ = self.decode(target, state, encoded, source)
        return logits

    def encode(self, source: Tensor) -> tuple[Tensor, State]:
        """What the decoder attends to, (N, S, width), and the state it starts from."""
        return self.encoder(self.source(source))

    def decode(
        self, target: Tensor, state: State, encoded: Tensor, source: Tensor
    ) -> tuple[Tensor, State]:
        """Logits (N, T, vocabulary) of what follows `target`, and the state after it.

        encoded: of `source`, as `encode` gives it.
        """
        decoded, state = self.decoder(self.target(target), state)
        scores = torch.bmm(self.attention(decoded), encoded.transpose(1, 2))
        scores = scores.masked_fill((source == 0).unsqueeze(1), float("-inf"))
        context = torch.bmm(scores.softmax(2), encoded)
        attended = torch.tanh(self.joined(torch.cat([context, decoded], 2)))
        return self.projection(attended), state
