"""The devices that `--device fake…` can name, and how much memory they have."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.errors import UsageError
from memplan.units import parse_bytes

# GiB of device memory as their makers state it; the driver keeps some of it.
GPUS = {
    "t4": 16,
    "v100": 32,
    "l4": 24,
    "l40s": 48,
    "a10": 24,
    "a100-40": 40,
    "a100": 80,
    "h100": 80,
    "h200": 141,
    "b200": 192,
    "rtx3090": 24,
    "rtx4090": 24,
    "rtx5090": 32,
}


@dataclass(frozen=True)
class FakeDevice:
    """What is simulated: the CPU, or a GPU of `capacity` bytes; None: without limit."""

    is_gpu: bool
    name: str = "simulated GPU"
    capacity: int | None = None


def fake_device(text: str) -> FakeDevice | None:
    """The device that `fake`, `fake:cuda` or `fake:cuda:NAME` names; None for others.

    NAME: one of GPUS, or a size such as 24GiB. Raises UsageError for another.
    """
    if text in ("fake", "fake:cpu"):
        return FakeDevice(is_gpu=False)
    if text == "fake:cuda":
        return FakeDevice(is_gpu=True)
    if not text.startswith("fake"):
        return None
    name = text.removeprefix("fake:cuda:")
    if name != text and name.lower() in GPUS:
        return FakeDevice(True, name, GPUS[name.lower()] << 30)
    if name != text and name[:1].isdigit():
        return FakeDevice(True, f"simulated GPU of {name}", parse_bytes(name))
    raise UsageError(
        f"{text}: write fake, fake:cuda, fake:cuda:SIZE (24GiB) or one of "
        + ", ".join(f"fake:cuda:{known}" for known in GPUS)
    )
