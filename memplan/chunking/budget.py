"""How much memory activations may take, as the user says it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from memplan.errors import UsageError
from memplan.units import parse_bytes


@dataclass(frozen=True)
class Budget:
    """Bytes, a share of what the model takes as it is, or as little as there is."""

    bytes: int | None = None
    share: Fraction | None = None
    least: bool = False

    def bytes_of(self, before: int) -> int:
        """The budget in bytes, where the activations now take `before`; 0 for least."""
        if self.bytes is not None:
            return self.bytes
        return int(before * self.share) if self.share is not None else 0


def parse_budget(text: str | int) -> Budget:
    """A budget as in "512MiB", "20%" or "min"; an int is bytes.

    Raises UsageError for anything else, and for budgets of nothing.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text <= 0:
            raise UsageError(f"a budget is more than 0 bytes, and this is {text}")
        return Budget(bytes=text)
    if not isinstance(text, str):
        raise UsageError(f"a budget is as in 512MiB, 20% or min, and not {text!r}")
    if text == "min":
        return Budget(least=True)
    if text.endswith("%"):
        try:
            share = Fraction(text[:-1]) / 100
        except (ValueError, ZeroDivisionError):
            share = Fraction(0)
        if not 0 < share <= 1:
            raise UsageError(f"a budget's share is above 0% and at most 100%: {text!r}")
        return Budget(share=share)
    size = parse_bytes(text)
    if size <= 0:
        raise UsageError(f"a budget is more than 0 bytes, and this is {text!r}")
    return Budget(bytes=size)
