"""Small models of every kind that chunking meets, in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Attention(nn.Module):
    """Attention written out: its scores are most of the activations."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, tokens, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2)
        return x + self.out(mixed.reshape(batch, tokens, width))


def attention(tokens: int = 128, batch: int = 1) -> tuple[nn.Module, torch.Tensor]:
    return Attention().eval(), torch.randn(batch, tokens, 16)


def mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 16)
    return nn.Sequential(*layers).eval(), torch.randn(4, 64, 16)


def conv() -> tuple[nn.Module, torch.Tensor]:
    first, last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
    layers = first, nn.GELU(), last
    return nn.Sequential(*layers).eval(), torch.randn(1, 3, 64, 64)


def normed() -> tuple[nn.Module, torch.Tensor]:
    layers = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU()
    return nn.Sequential(*layers).eval(), torch.randn(1, 3, 64, 64)


class Nested(nn.Module):
    """Takes keyword arguments and nests of tensors, and gives some."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, *, pair: dict[str, Any], scale: float = 1.0) -> dict[str, Any]:
        first, (second,) = pair["first"], pair["others"]
        y = self.attention(first) * scale
        return {"both": [y, second + 1], "sum": (y + second).sum(), "none": None}


class Branching(nn.Module):
    """A branch on data between two parts that can be exported."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Attention(), Attention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if float(y.sum()) > 0:
            y = -y
        y = self.second(y)
        assert isinstance(y, torch.Tensor)
        return y


class Opaque(nn.Module):
    """Nothing of it can be exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if float(x.sum()) > 0 else x * 3


class Counting(nn.Module):
    """Counts its calls in a buffer; a part of it does not."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.attention(x)


class Skips(nn.Module):
    """Down by pooling and up again, by the way named, with a skip at each of two
    sides."""

    def __init__(self, up: str) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1)
            if up == "transposed"
            else nn.Upsample(
                scale_factor=2,
                mode=up.removesuffix("-corners"),
                align_corners={"bilinear": False, "bilinear-corners": True}.get(up),
            )
            for _ in range(2)
        )
        self.join = nn.ModuleList(nn.Conv2d(16, 8, 3, padding=1) for _ in range(2))
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.first(x)
        two = self.second(nn.functional.max_pool2d(one, 2))
        x = self.middle(nn.functional.max_pool2d(two, 2))
        x = self.join[0](torch.cat([self.up[0](x), two], 1)).relu()
        x = self.join[1](torch.cat([self.up[1](x), one], 1)).relu()
        return self.head(x)


def skips(up: str = "nearest") -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(2)
    return Skips(up).eval(), torch.randn(1, 3, 64, 48)
