"""A small GPT in plain PyTorch with attention written out: something to chunk.

    memplan chunk scripts/chunk_gpt.py:factory --budget 20%
    memplan chunk scripts/chunk_gpt.py:training --train --budget 60%

Random weights; nothing is downloaded.
"""

from __future__ import annotations

import torch
from torch import nn

WIDTH, HEADS, LAYERS, TOKENS = 256, 8, 4, 1024
VOCABULARY = 50257


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        past = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
        self.register_buffer("future", ~past)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, HEADS, width // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (width // HEADS) ** -0.5
        scores = scores.masked_fill(self.future[:tokens, :tokens], float("-inf"))
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class LanguageModel(nn.Module):
    """Two blocks and the loss of the next token; the projection to logits is tied to
    the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.places(places))
        logits = self.head(x)[:, :-1].reshape(-1, VOCABULARY)
        return nn.functional.cross_entropy(logits, tokens[:, 1:].reshape(-1))


def training() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """A model that returns its loss, and one text."""
    return LanguageModel(), (torch.randint(0, VOCABULARY, (1, TOKENS)),)


def factory() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The model, and inputs: embeddings of one text."""
    model = nn.Sequential(*(Block() for _ in range(LAYERS)))
    return model.eval(), (torch.randn(1, TOKENS, WIDTH),)
