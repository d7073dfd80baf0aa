"""Small programs that train, each of another kind; none knows of memplan.

They print losses to the last bit, then a digest of all weights, buffers and the
generator's state.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import memplan

BEGIN = """\
import copy, hashlib, random, sys
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)
torch.set_num_threads(1)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 6
"""

END = """
for step in range(steps):
    optimizer.zero_grad()
    print(train().hex())
digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
for name, value in model.state_dict().items():
    digest.update(value.numpy().tobytes())
print(digest.hexdigest())
"""

ENCODER = """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(4)])
        self.head = nn.Linear(64, 16)

    def forward(self, value):
        for layer in self.layers:
            value = layer(value)
        return self.head(value)

model = Encoder()
optimizer = torch.optim.AdamW(model.parameters())

def train():
    loss = model(torch.randn(4, 64, 64)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""

CONVOLUTIONS = """
def block(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after),
        nn.ReLU(inplace=True), nn.Conv2d(after, after, 3, padding=1),
        nn.BatchNorm2d(after), nn.ReLU(inplace=True),
    )

model = nn.Sequential(
    block(3, 16), nn.MaxPool2d(2), block(16, 32), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(32, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def train():
    images, labels = torch.randn(8, 3, 48, 48), torch.randint(10, (8,))
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()
"""

SHARED = """
class Unrolled(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
        self.counted = nn.BatchNorm1d(256)

    def forward(self, value):
        for _ in range(6):
            value = value + torch.tanh(self.counted(self.cell(value)))
        return value

model = Unrolled()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    total = 0.0
    for _ in range(2):  # gradients of two batches add up
        loss = model(torch.randn(512, 256)).square().mean()
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total
"""

ADVERSARIES = """
def net(before, after):
    layers = [nn.Linear(before, 256), nn.LayerNorm(256), nn.GELU()]
    layers += [nn.Linear(256, 256), nn.Dropout(0.2), nn.GELU(), nn.Linear(256, after)]
    return nn.Sequential(nn.Sequential(*layers[:3]), nn.Sequential(*layers[3:]))

generator, critic = net(32, 64), net(64, 1)
model = nn.ModuleList([generator, critic])
first = torch.optim.Adam(generator.parameters())
optimizer = torch.optim.Adam(critic.parameters())

def train():
    made = generator(torch.randn(1024, 32))
    loss = critic(torch.randn(1024, 64)).mean() - critic(made.detach()).mean()
    loss.backward()
    optimizer.step()
    generator.zero_grad()
    fooled = critic(made).mean()
    fooled.backward()
    first.step()
    return (loss + fooled).item()
"""

RECURRENT = """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.first = nn.LSTM(64, 64, batch_first=True)
        self.second = nn.LSTM(64, 64, batch_first=True)
        self.ends = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 100))

    def forward(self, text):
        value, state = self.first(self.words(text))
        value, _ = self.second(value, state)
        return self.ends(value)

model = Reader()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    text = torch.randint(100, (16, 33))
    logits = model(text[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()
"""

NORMALIZED = """
class Part(nn.Module):
    def __init__(self):
        super().__init__()
        make = nn.utils.parametrizations.spectral_norm
        self.first, self.last = make(nn.Linear(128, 256)), make(nn.Linear(256, 128))

    def forward(self, value):
        return value + self.last(torch.tanh(self.first(value)))

model = nn.Sequential(*[Part() for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    loss = model(torch.randn(1024, 128)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""

MIXED = ENCODER.replace(
    "    loss = model(",
    "    with torch.autocast('cpu', torch.bfloat16):\n        loss = model(",
).replace("(4, 64, 64)).square", "(4, 64, 64)).float().square")

RUNS = """
class Residual(nn.Sequential):
    def forward(self, value):
        return value + super().forward(value)

class Twice(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, value):
        return self.part(self.part(value))

def conv(size):
    return nn.Conv2d(64, 64, size, padding=size // 2)

model = nn.Sequential(
    conv(1), Residual(conv(1), nn.Dropout2d(0.1)), Residual(conv(1), conv(3)),
    Residual(conv(1), Twice(nn.Sequential(
        Residual(conv(3), conv(1)), nn.Hardswish(), nn.GroupNorm(4, 64), nn.GELU(),
        conv(1),
    ))),
    Residual(conv(1), conv(3)), Residual(conv(1), nn.GroupNorm(4, 64)),
    Residual(conv(1), nn.GELU()), conv(1),
)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)

def train():
    loss = model(torch.randn(4, 64, 24, 24)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""

CACHED = """
class Cache:
    def __init__(self):
        self.keys, self.seen = {}, 0

    def add(self, number, keys):
        if number in self.keys:
            keys = torch.cat([self.keys[number], keys], 1)
        self.keys[number] = keys
        self.seen += 1
        return keys

class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.query, self.keys = nn.Linear(64, 64), nn.Linear(64, 64)
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, value, mask, cache):
        keys = cache.add(self.number, self.keys(value))
        scores = self.query(value) @ keys.transpose(1, 2) / 8 + mask
        value = value + scores.softmax(-1) @ keys
        return value + self.last(F.gelu(self.first(value))) / cache.seen

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(i) for i in range(4)])

    def forward(self, value):
        mask = torch.full((4, 128, 128), float("-inf")).triu(1)
        cache = Cache()
        for layer in self.layers:
            value = layer(value, mask, cache=cache)
        return value, cache

model = Decoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    loss = model(torch.randn(4, 128, 64))[0].square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""

KEPT = """
class Part(nn.Module):
    def __init__(self, source, several):
        super().__init__()
        self.keys, self.kept, self.several = nn.Linear(64, 64), None, several
        layers = [nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)]
        self.rest = nn.Sequential(*layers)
        self.__dict__["source"] = source  # no part of it

    def forward(self, value):
        if self.source is None:
            keys = self.keys(value).tanh()
            self.kept = (keys,) if self.several else keys
        else:
            keys = self.source.kept[0] if self.several else self.source.kept
        return value + self.rest(value * keys)

parts = []
for i in range(8):
    parts.append(Part(parts[-1] if i % 2 else None, i < 4))
model = nn.Sequential(*parts)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    loss = model(torch.randn(1024, 64)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""

PROGRAMS = {
    "encoder": ENCODER,
    "mixed": MIXED,
    "normalized": NORMALIZED,
    "convolutions": CONVOLUTIONS,
    "shared": SHARED,
    "adversaries": ADVERSARIES,
    "recurrent": RECURRENT,
    "runs": RUNS,
    "cached": CACHED,
    "kept": KEPT,
}


def without_times(path: Path) -> None:
    """Take the times from the trace at `path`: what is chosen then depends on none."""
    trace = memplan.read_trace(path)
    assert trace.calls is not None
    assert trace.calls.cost_ns.any()
    calls = replace(trace.calls, cost_ns=np.zeros_like(trace.calls.cost_ns))
    memplan.write_trace(replace(trace, calls=calls), path)


def script_of(program: str) -> str:
    """The whole of it."""
    return BEGIN + program + END
