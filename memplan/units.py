"""Sizes and times as text."""

from __future__ import annotations

import re

from memplan.errors import UsageError

_IEC = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(
    r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kmgtp]?)(i?)(b?)\s*", re.IGNORECASE
)


def parse_bytes(text: str) -> int:
    """Bytes from ``"12GiB"`` (2^30), ``"12GB"`` (10^9), ``"0.5g"`` (2^30), ``"512"``.

    A bare letter counts in powers of 1024. Raises UsageError, also for a fraction
    without a unit.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a size; write 12GiB, 12GB, 0.5g or 4096")
    number, prefix, binary, unit = match.groups()
    if not prefix and binary:
        raise UsageError(f"{text!r} is not a size; write 12GiB, 12GB, 0.5g or 4096")
    if not prefix and "." in number:
        raise UsageError(f"{text!r} has no unit; write {number}GiB, or whole bytes")
    base = 1000 if prefix and unit and not binary else 1024
    power = " kmgtp".index(prefix.lower()) if prefix else 0
    scale: int = base**power
    return round(float(number) * scale) if "." in number else int(number) * scale


def parse_memory(text: str) -> int:
    """As `parse_bytes`, for the memory of a device or a program.

    Also raises UsageError for a number below 1024 without a unit, other than 0: no
    program with tensors fits so few bytes, and counts of MiB or GiB look like this.
    """
    size, bare = parse_bytes(text), text.strip()
    if bare.isdigit() and 0 < size < 1024:
        raise UsageError(
            f"{bare} has no unit; write {bare}GiB, {bare}MiB, or {bare}B for bytes"
        )
    return size


def format_bytes(count: int | float) -> str:
    """``"12.4 GiB"``: IEC units with one decimal, whole bytes below 1 KiB."""
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_IEC) - 1:
        value, unit = value / 1024, unit + 1
    if unit and abs(value) >= 1023.95 and unit < len(_IEC) - 1:
        value, unit = value / 1024, unit + 1
    return f"{int(count)} B" if unit == 0 else f"{value:.1f} {_IEC[unit]}"


def budget_of(count: int) -> str:
    """As `format_bytes`, rounded up: a budget that `count` bytes keep to."""
    text, step = format_bytes(count), 0
    while parse_bytes(text) < count:
        step += 1 + count // 100
        text = format_bytes(count + step)
    return text


def format_seconds(seconds: float) -> str:
    """``"1.2 s"``, ``"34 ms"``, ``"5.6 µs"``."""
    for limit, scale, unit in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs")):
        if seconds >= limit:
            value = seconds * scale
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{seconds:.3g} s"


def format_share(share: float) -> str:
    """A share as a percentage: ``"83.1 %"``."""
    return f"{100 * share:.1f} %"


def format_gap(gap: float) -> str:
    """A gap as a percentage: ``"0.42 %"``, ``"0 %"`` only for zero."""
    if gap == 0:
        return "0 %"
    return f"{gap:.2%}".replace("%", " %") if gap >= 5e-5 else "< 0.01 %"
