"""How many bits elements have: of inputs, weights, partial sums and results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from memplan.blocking.nest.layer import Tensor
from memplan.errors import UsageError

WORD_BITS = 16  # that energies of accesses are given for
MAX_BITS = 128
INTEGERS = {8: "int8", 16: "int16", 32: "int32"}  # formats by the bits of operands


@dataclass(frozen=True)
class Precision:
    """Bits of an element.

    input and kernel: of operands; partial: of sums that are not complete, which is what
    memories of the output hold; output: of the result, which is what the last write of
    every element of the output carries, across each boundary. multiplier: the format
    of the multiplication, by which its energy is looked up.
    Raises UsageError where bits are not in [1, MAX_BITS].
    """

    input: int = WORD_BITS
    kernel: int = WORD_BITS
    partial: int = WORD_BITS
    output: int = WORD_BITS
    multiplier: str = "int16"

    def __post_init__(self) -> None:
        for name in ("input", "kernel", "partial", "output"):
            bits: int = getattr(self, name)
            if not 1 <= bits <= MAX_BITS:
                raise UsageError(
                    f"{name} has {bits} bits, and must have 1 to {MAX_BITS}"
                )

    def held(self, tensor: Tensor) -> int:
        """Bits of an element of `tensor` in a memory."""
        own = {Tensor.INPUT: self.input, Tensor.KERNEL: self.kernel}
        return own.get(tensor, self.partial)

    def last(self, tensor: Tensor) -> int:
        """Bits of an element the last time that it is written."""
        return self.output if tensor is Tensor.OUTPUT else self.held(tensor)

    def scale(self, tensor: Tensor) -> float:
        """What an access to an element in a memory takes, of one to WORD_BITS."""
        return self.held(tensor) / WORD_BITS

    def __str__(self) -> str:
        """As `parse_precision` reads it: the format's name where it has one."""
        for name, known in FORMATS.items():
            if known == self:
                return name
        return (
            f"input={self.input},kernel={self.kernel},partial={self.partial},"
            f"output={self.output}"
        )


FORMATS: Mapping[str, Precision] = {
    "int8": Precision(8, 8, 32, 8, "int8"),
    "int16": Precision(),
    "int32": Precision(32, 32, 32, 32, "int32"),
    "fp16": Precision(16, 16, 32, 16, "fp16"),
    "bf16": Precision(16, 16, 32, 16, "bf16"),
    "fp32": Precision(32, 32, 32, 32, "fp32"),
}
MULTIPLIERS = tuple(FORMATS)
_FIELD = re.compile(r"(input|kernel|partial|output)=([0-9]{1,4})\Z")


def of_bits(given: Mapping[str, int], base: Precision | None = None) -> Precision:
    """The precision of these bits, and `base`'s or 16 where there are none.

    Without a base multipliers are integers of the wider operand's bits, rounded up to
    8, 16 or 32. Raises UsageError where bits make no sense.
    """
    found = replace(base or Precision(), **given)  # type: ignore[arg-type]
    if base is not None and base.multiplier not in INTEGERS.values():
        return found
    widest = max(found.input, found.kernel)
    name = next((one for bits, one in INTEGERS.items() if widest <= bits), "int32")
    return replace(found, multiplier=name)


def parse_precision(text: str) -> Precision:
    """``int8``, ``input=8,kernel=4,partial=32,output=8``, or a format and what differs:
    ``fp16,output=32``. Raises UsageError naming the part that is wrong."""
    base: Precision | None = None
    given: dict[str, int] = {}
    for place, part in enumerate(map(str.strip, text.split(","))):
        match = _FIELD.match(part.lower())
        if match is not None and match[1] not in given:
            given[match[1]] = int(match[2])
        elif place == 0 and part.lower() in FORMATS:
            base = FORMATS[part.lower()]
        else:
            raise UsageError(
                f"bits {text!r}: {part!r} should be one of {', '.join(FORMATS)} in the "
                "first place, or input, kernel, partial or output with a number of "
                "bits, each once: input=8,kernel=8,partial=32,output=8"
            )
    return of_bits(given, base) if given or base is None else base
