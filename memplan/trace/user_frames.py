"""Which frame of a stack is the program's own."""

from __future__ import annotations

import re
import sys
from functools import lru_cache

from memplan.trace.stacks import Frame, Stack

# What torch.compile writes into its cache, wherever it is: ab/cab….py, by a hash.
_GENERATED = re.compile(r"[/\\]([a-z2-7]{2})[/\\]c\1[a-z2-7]{49}\.py\Z")
_CPP = (".cpp", ".c", ".cc", ".cu", ".h")


def first_of_user(stack: Stack) -> Frame:
    """The innermost frame that is neither PyTorch's nor Python's own.

    The innermost one of all where there is none; Frame("", 0, "") of an empty stack,
    and where that is C++.
    """
    for frame in stack:
        if _is_users(frame.filename):
            return frame
    if not stack or is_native(stack[0].filename):
        return Frame("", 0, "")
    return stack[0]


def is_native(file: str) -> bool:
    """Whether a frame of that file is C++, or no file is known."""
    return file in ("", "??") or file.endswith((*_CPP, ".so"))


@lru_cache(maxsize=1 << 14)
def _is_users(file: str) -> bool:
    parts = file.replace("\\", "/").split("/")
    if not file or file.startswith(("<frozen", "??")) or parts[-1].endswith(".so"):
        return False
    if _GENERATED.search(file):
        return False
    for folder in ("site-packages", "dist-packages"):
        if folder in parts[:-1]:
            return parts[parts.index(folder) + 1] not in ("torch", "functorch")
    if parts[-1].endswith(_CPP):
        return False  # where snapshots hold the frames of C++, too
    return not any(p.startswith("python3.") for p in parts[:-1]) and not (
        file.startswith(sys.base_prefix + "/lib/python")
    )
