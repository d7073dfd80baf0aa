"""A decoder that keeps the keys and values of the tokens before."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.gpt2 import Block

Cache = tuple[Tensor, Tensor]  # keys and values, each (N, heads, T, width / heads)


class CachedBlock(Block):
    """A block that attends to tokens before, too."""

    def forward(self, x: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """x: (N, T, width), of new tokens: all of a prompt, or one after the other."""
        query, key, value = self.attention.parts(self.attention_norm(x))
        if cache is not None:
            key, value = torch.cat((cache[0], key), 2), torch.cat((cache[1], value), 2)
        y = functional.scaled_dot_product_attention(
            query, key, value, is_causal=cache is None
        )
        x = x + self.attention.joined(y)
        return x + self.network(self.network_norm(x)), (key, value)


class CachedDecoder(nn.Module):
    """New tokens (N, T) and the cache of those before, to logits (N, vocabulary) of
    the next and the longer cache; with T > 1 only where there is no cache yet."""

    def __init__(
        self, vocabulary: int, context: int, layers: int, width: int, heads: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(CachedBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(
        self, tokens: Tensor, caches: list[Cache] | None
    ) -> tuple[Tensor, list[Cache]]:
        before = 0 if caches is None else caches[0][0].shape[2]
        places = torch.arange(before, before + tokens.shape[1])
        x = self.tokens(tokens) + self.positions(places)
        longer: list[Cache] = []
        for number, block in enumerate(self.blocks):
            x, cache = block(x, None if caches is None else caches[number])
            longer.append(cache)
        return functional.linear(self.norm(x[:, -1]), self.tokens.weight), longer
