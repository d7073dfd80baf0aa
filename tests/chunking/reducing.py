"""Models whose peak lies before a reduction, and models with weights to be widened."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

F = nn.functional


class Hidden(nn.Module):
    """Hidden features, which make the peak where rows are few."""

    def __init__(self, width: int = 32, hidden: int = 8192) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Any) -> Any:
        return x + self.narrow(F.gelu(self.wide(x)))


class Pooled(nn.Module):
    """A head on the mean of all tokens."""

    def __init__(self, width: int = 32, hidden: int = 128) -> None:
        super().__init__()
        self.wide, self.head = nn.Linear(width, hidden), nn.Linear(hidden, 10)

    def forward(self, x: Any) -> Any:
        return self.head(F.gelu(self.wide(x)).mean(1))


class Experts(nn.Module):
    """Each expert takes the tokens that want it most, and adds to them."""

    def __init__(self, experts: int = 16, width: int = 32, hidden: int = 128) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.wide = nn.Parameter(torch.randn(experts, width, hidden) / 6)
        self.narrow = nn.Parameter(torch.randn(experts, hidden, width) / 12)

    def forward(self, x: Any) -> Any:
        shares, tokens = self.gate(x).softmax(-1).t().topk(len(x) // 8, -1)
        y = torch.bmm(F.gelu(torch.bmm(x[tokens], self.wide)), self.narrow)
        y = (y * shares.unsqueeze(-1)).reshape(-1, x.shape[-1])
        return torch.zeros_like(x).index_add(0, tokens.reshape(-1), y)


class Messages(nn.Module):
    """Nodes of a graph add up what their neighbours send."""

    def __init__(self, width: int = 16, hidden: int = 64) -> None:
        super().__init__()
        self.message = nn.Sequential(
            nn.Linear(2 * width, hidden), nn.ReLU(), nn.Linear(hidden, width)
        )
        self.update = nn.Linear(2 * width, width)

    def forward(self, x: Any, edges: Any) -> Any:
        source, target = edges
        sent = self.message(torch.cat([x[source], x[target]], -1))
        where = target.unsqueeze(-1).expand(-1, x.shape[1])
        return self.update(
            torch.cat([x, torch.zeros_like(x).scatter_add(0, where, sent)], -1)
        )


class Evaluated(nn.Module):
    """A language model's loss: each token is the label of the one before."""

    def __init__(self, vocabulary: int = 20_000, width: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Any) -> Any:
        logits = self.head(torch.tanh(self.table(tokens))).float()[:, :-1]
        labels = tokens[:, 1:].reshape(-1)
        return F.cross_entropy(logits.reshape(len(labels), -1), labels, ignore_index=7)


class Partition(nn.Module):
    """The logarithm of a sum over a vocabulary."""

    def __init__(self, vocabulary: int = 20_000, width: int = 16) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocabulary, width))

    def forward(self, x: Any) -> Any:
        return (x @ self.table.t()).logsumexp(-1)


class Statistics(nn.Module):
    """Several reductions of one value."""

    def __init__(self, width: int = 16, hidden: int = 128) -> None:
        super().__init__()
        self.wide = nn.Linear(width, hidden)

    def forward(self, x: Any) -> Any:
        y = self.wide(x).tanh().exp()
        return y.sum(0), y.amax(0), (y > 2).any(0), y.mean(), y.argmax(-1)


class Widened(nn.Module):
    """Weights are kept in a narrow type, and widened for each product."""

    def __init__(self, kind: str, width: int = 64, features: int = 1024) -> None:
        super().__init__()
        self.kind = kind
        first, second = torch.randn(features, width), torch.randn(width, features)
        if kind == "int8":
            self.register_buffer("scale", first.abs().amax(1, keepdim=True) / 127)
            self.register_buffer("first", (first / self.scale).round().to(torch.int8))
        else:
            self.first = nn.Parameter((first / 8).bfloat16())
        self.second = nn.Parameter((second / 32).bfloat16())

    def forward(self, x: Any) -> Any:
        if self.kind == "int8":
            return F.linear(x, self.first.float() * self.scale)
        if self.kind == "transposed":
            return x @ self.first.float().t()
        y = F.linear(x, self.first.float())
        return F.linear(F.gelu(y), self.second.float()) if self.kind == "both" else y


def models() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Models by name, with inputs."""
    return {
        "hidden": (Hidden(), (torch.randn(1, 1, 32),)),
        "pooled": (Pooled(), (torch.randn(1, 1003, 32),)),
        "experts": (Experts(), (torch.randn(256, 32),)),
        "messages": (
            Messages(),
            (torch.randn(50, 16), torch.randint(0, 50, (2, 3001))),
        ),
        "evaluated": (Evaluated(), (torch.randint(0, 20_000, (2, 17)),)),
        "partition": (Partition(), (torch.randn(3, 16),)),
        "statistics": (Statistics(), (torch.randn(1001, 16),)),
        "widened": (Widened("once"), (torch.randn(4, 64),)),
        "widened, transposed": (Widened("transposed"), (torch.randn(4, 64),)),
        "widened twice": (Widened("both"), (torch.randn(4, 64),)),
        "int8": (Widened("int8"), (torch.randn(4, 64),)),
    }
