"""A vision transformer (Dosovitskiy et al., An Image is Worth 16x16 Words, 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models.gpt2 import Block


class VisionTransformer(nn.Module):
    """Images (N, 3, H, H) to logits (N, classes), from their patches of `patch` pixels.

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
