"""Which frame of a stack is the program's own."""

from __future__ import annotations

import re
import sys
from functools import lru_cache

from memplan.trace.stacks import Frame, Stack

# What torch.compile writes into its cache, wherever it is: ab/cab….py, by a hash.
_GENERATED = re.compile(r"[/\\]([a-z2-7]{2})[/\\]c\1[a-z2-7]{49}\.py\Z")
# Python's frozen modules; the code of a graph, as torch.fx writes it.
NO_FILES = ("<frozen", "<eval_with_key>")
# C, C++ and assembly: where a thread of autograd's own begins is in the last.
_NATIVE = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".s", ".S", ".so")


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
    """Whether a frame of that file is machine code's, or no file is known."""
    return not file or file.startswith("??") or file.endswith(_NATIVE)


@lru_cache(maxsize=1 << 14)
def _is_users(file: str) -> bool:
    # Snapshots hold the frames of C++, too.
    if is_native(file) or file.startswith(NO_FILES) or _GENERATED.search(file):
        return False
    parts = file.replace("\\", "/").split("/")
    for folder in ("site-packages", "dist-packages"):
        if folder in parts[:-1]:
            return parts[parts.index(folder) + 1] not in ("torch", "functorch")
    return not any(p.startswith("python3.") for p in parts[:-1]) and not (
        file.startswith(sys.base_prefix + "/lib/python")
    )
