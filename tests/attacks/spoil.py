"""Honest files made hostile: cut, flipped, and edited field by field."""

from __future__ import annotations

import copy
import json
import random
import string
from collections.abc import Callable
from typing import Any

WRONG: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, -0.0, 1e300, float("nan"), float("inf")),
    *(1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), 10**30, 10**400),
    *("", "x", "\x00", "\ud800", "\x1b[31m", "a\nb", "x" * 70_000, "memplan.plan"),
    *([], {}, [[]], [0], {"": 0}, [None], [[0, 1]], {"a": {"a": {}}}, "NaN", "1"),
)


def bytes_spoiled(data: bytes, dice: random.Random) -> bytes:
    """`data` with one kind of damage that knows nothing of its format."""
    at, length = dice.randrange(len(data)), dice.randrange(1, 40)
    end, flipped = at + length, bytearray(data)
    for _ in range(dice.randrange(1, 9)):
        flipped[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    text = data.decode("latin-1")
    ways: list[Callable[[], bytes]] = [
        lambda: data[:at],
        lambda: bytes(flipped),
        lambda: data[:at] + data[end:],
        lambda: data[:end] + data[at:],
        lambda: data[:at] + b"\x00" * length + data[end:],
        lambda: data[:at] + dice.randbytes(length) + data[end:],
        lambda: text.encode(dice.choice(["utf-16", "utf-8-sig"])),
        lambda: data + data,
        lambda: data[:at] + dice.choice(TOKENS) + data[at:],
    ]
    return dice.choice(ways)() or b"\n"


TOKENS = (
    *(b"[", b"]", b"{", b"}", b'"', b",", b":", b"-", b".", b"e9", b"\\", b"\xff"),
    *(b"9" * 5000, b"[" * 3000, b'{"a":' * 500, b"NaN", b"null", b"\n\n", b"\r", b"@"),
)


def value_spoiled(value: Any, dice: random.Random) -> Any:
    """A copy of a tree of dicts and lists with one or two entries made wrong."""
    value = copy.deepcopy(value)
    for _ in range(dice.choice((1, 1, 2))):
        holder, key = dice.choice(_places(value))
        if isinstance(holder, dict):
            _spoil_field(holder, key, dice)
        else:
            _spoil_entry(holder, key, dice)
        if not _places(value):
            break
    return value


def json_text(value: Any, dice: random.Random) -> bytes:
    """`value` as JSON, now and then with a key twice."""
    text = json.dumps(value)
    if dice.random() < 0.1 and "{" in text[1:]:
        at = dice.choice([i for i, c in enumerate(text) if c == "{"])
        inner = text[at + 1 :].partition(":")[0]
        text = f"{text[: at + 1]}{inner}: 0, {text[at + 1 :]}"
    return text.encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        keys: Any = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    else:
        return []
    return [(value, k) for k in keys] + [p for k in keys for p in _places(value[k])]


def _spoil_field(holder: dict[str, Any], key: str, dice: random.Random) -> None:
    match dice.randrange(5):
        case 0:
            del holder[key]
        case 1:
            holder[dice.choice(string.ascii_letters) + key] = holder.pop(key)
        case 2:
            holder[dice.choice(("", "extra", "x" * 70_000, "\x00"))] = dice.choice(
                WRONG
            )
        case _:
            holder[key] = dice.choice(WRONG)


def _spoil_entry(holder: list[Any], place: int, dice: random.Random) -> None:
    match dice.randrange(5):
        case 0:
            del holder[place]
        case 1:
            holder.insert(place, copy.deepcopy(holder[place]))
        case 2:
            holder[place], holder[0] = holder[0], holder[place]
        case _:
            holder[place] = dice.choice(WRONG)
