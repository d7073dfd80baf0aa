"""GPT-2 (Radford et al., Language Models are Unsupervised Multitask Learners, 2019)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Self-attention over (N, T, width), `heads` of width / heads each."""

    def __init__(self, width: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.parts(x)
        y = functional.scaled_dot_product_attention(
            query, key, value, is_causal=self.causal
        )
        return self.joined(y)

    def parts(self, x: Tensor) -> list[Tensor]:
        """Queries, keys and values, each (N, heads, T, width / heads)."""
        batch, length, width = x.shape
        return [
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.inputs(x).split(width, dim=2)
        ]

    def joined(self, y: Tensor) -> Tensor:
        """What the heads found, (N, heads, T, width / heads), to (N, T, width)."""
        return self.outputs(y.transpose(1, 2).flatten(2))


class Network(nn.Module):
    """Two layers, the inner one four times as wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 4 * width)
        self.outputs = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.outputs(functional.gelu(self.inner(x), approximate="tanh"))


class Block(nn.Module):
    """Attention, then the network, each behind a layer norm and added to its input."""

    def __init__(self, width: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.network_norm = nn.LayerNorm(width)
        self.network = Network(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.network(self.network_norm(x))


class GPT2(nn.Module):
    """Tokens (N, T) to logits (N, T, vocabulary), T at most `context`.

    The output layer shares the token embedding. The defaults are GPT-2 small:
    124,439,808 parameters.
    """

    def __init__(
        self,
        vocabulary: int = 50257,
        context: int = 1024,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        blocks = [Block(width, heads) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        # Section 2.3: what each block adds to the stream is scaled by the depth.
        for block in blocks:
            for added in (block.attention.outputs.weight, block.network.outputs.weight):
                nn.init.normal_(added, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.positions(places))
        return functional.linear(self.norm(x), self.tokens.weight)
