"""GPT-2 (Radford et al., Language Models are Unsupervised Multitask Learners, 2019),
and what else is made of its blocks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


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
        block: type[Block] = Block,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        blocks = [block(width, heads) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        # Section 2.3: what each block adds to the stream is scaled by the depth.
        for each in blocks:
            for added in (each.attention.outputs.weight, each.network.outputs.weight):
                nn.init.normal_(added, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.positions(places))
        return functional.linear(self.norm(x), self.tokens.weight)


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


class CachedDecoder(GPT2):
    """New tokens (N, T) and the cache of those before, to logits (N, vocabulary) of
    the next and the longer cache; with T > 1 only where there is no cache yet."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes, block=CachedBlock)

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


class VisionTransformer(nn.Module):
    """A vision transformer (Dosovitskiy et al., An Image is Worth 16x16 Words, 2021):
    images (N, 3, H, H) to logits (N, classes), from their patches of `patch` pixels.

    checkpointed: keep only each block's input, and run the block again on the way
    back (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).
    """

    def __init__(
        self,
        image_size: int,
        classes: int,
        layers: int = 12,
        width: int = 192,
        heads: int = 3,
        checkpointed: bool = False,
        patch: int = 8,
    ) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.patches = nn.Conv2d(3, width, patch, patch)
        places = (image_size // patch) ** 2
        self.positions = nn.Parameter(torch.randn(1, places, width) * 0.02)
        self.blocks = nn.ModuleList(
            Block(width, heads, causal=False) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            if self.checkpointed and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(self.norm(x).mean(1))
