"""Sets of machine instructions: what they are called, and what this CPU has."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Mapping

from memplan.errors import UsageError

# Flags of the compiler for each.
FLAGS: Mapping[str, tuple[str, ...]] = {
    "native": ("-march=native",),
    "avx512": ("-march=x86-64-v4",),
    "avx2": ("-march=x86-64-v3",),
    "portable": (),
}
# What the levels 3 and 4 of x86-64's ABI ask for, as Linux calls it.
_AVX2 = "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
_NEEDED = {
    "native": "",
    "avx512": f"{_AVX2} avx512f avx512bw avx512cd avx512dq avx512vl",
    "avx2": _AVX2,
    "portable": "",
}


def supported(instructions: str) -> bool:
    """Whether this CPU runs what is compiled for "native", "avx512", "avx2" or
    "portable"; where its features cannot be told, the middle two count as missing.

    Raises UsageError for other names.
    """
    if instructions not in FLAGS:
        raise UsageError(f"{instructions}: not one of {', '.join(FLAGS)}")
    return set(_NEEDED[instructions].split()) <= set(cpu_features())


@functools.cache
def cpu_features() -> tuple[str, ...]:
    """The features that the system reports of the first CPU, sorted; none outside
    Linux."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            text = stream.read()
    except OSError:
        return ()
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return tuple(sorted(match[1].split())) if match else ()


def cpu() -> tuple[str, ...]:
    """What tells this CPU's instructions from others': its features, or where those
    are unknown, the machine's name."""
    return cpu_features() or ("unknown", platform.processor(), platform.node())
