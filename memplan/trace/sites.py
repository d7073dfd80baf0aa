"""What each buffer of a trace holds, and which line of the program asked for it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from memplan.arrays import Int64Array
from memplan.trace.stacks import Frame, Phase, Stack, StackTable
from memplan.trace.trace import Action, Category, Columns

# What says more than what stands after it: a buffer may be labelled more than once.
_STRONGEST_FIRST = (
    Category.PARAMETERS,
    Category.OPTIMIZER_STATE,
    Category.GRADIENTS,
    Category.INPUTS,
)


# In the names of C++ frames: a node of autograd's, Python's name of what was called.
_NATIVE_OPERATORS = (
    re.compile(r"(\w+Backward\w*)::apply"),
    re.compile(r"THPVariable_(\w+)\("),
    re.compile(r"at::_ops::(\w+)::call"),
)
_MOST_NAME = 300  # characters of a name that are looked at
# What torch.compile writes into its cache, wherever it is: ab/cab….py, by a hash.
_GENERATED = re.compile(r"[/\\]([a-z2-7]{2})[/\\]c\1[a-z2-7]{49}\.py\Z")
# Python's frozen modules; the code of a graph, as torch.fx writes it.
NO_FILES = ("<frozen", "<eval_with_key>")
# C, C++ and assembly: where a thread of autograd's own begins is in the last.
_NATIVE = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".s", ".S", ".so")


@dataclass(frozen=True)
class Site:
    """Who asked for a buffer; empty where that is not known.

    file, line, function: the first frame that is neither PyTorch's nor Python's own;
    of a backward pass, the line of the forward pass that made it necessary.
    module: the path of the module that ran. operator: what ran, as PyTorch names it.
    """

    file: str = ""
    line: int = 0
    function: str = ""
    module: str = ""
    operator: str = ""

    @property
    def place(self) -> str:
        """ "file:line", or "unknown"."""
        return f"{self.file}:{self.line}" if self.file else "unknown"


@dataclass(frozen=True, eq=False)
class Attribution:
    """Of n buffers: codes of Category, and who asked, as indexes into `sites`."""

    category: npt.NDArray[np.uint8]
    site: Int64Array
    sites: tuple[Site, ...]


def attribution(
    events: Columns, stacks: StackTable, row: Int64Array, end: Int64Array
) -> Attribution:
    """What the buffers allocated in events `row` and freed in `end` hold, and for whom.

    By their stacks, and by the labels that the recorder put on them.
    """
    index = np.full(len(events), -1, dtype=np.int64)
    index[row] = np.arange(len(row))
    stack = events.stack[row].astype(np.int64)
    known: dict[Site, int] = {}
    numbers = range(len(stacks))
    # Of each stack, and last of none, where -1 finds it.
    found = [*(site_of(stacks, i) for i in numbers), Site()]
    of_stack = np.array([known.setdefault(each, len(known)) for each in found])
    phases = np.array([*(stacks.origin(i).phase for i in numbers), 0], dtype=np.uint8)
    site, phase = of_stack[stack], phases[stack]
    label, block = labels(events)
    ours = index[block] >= 0
    label, buffer = label[ours], index[block[ours]]
    # Sites without a module take that of the stack their buffer was labelled with.
    sites = tuple(known)
    noted = zip(buffer.tolist(), events.stack[label].tolist(), strict=True)
    for i, index in {i: index for i, index in noted if index >= 0}.items():
        module = stacks.origin(index).module
        if module and not sites[site[i]].module:
            better = replace(sites[site[i]], module=module)
            site[i] = known.setdefault(better, len(known))
    category = _categories(phase, row, end, (events.requested_size[label], buffer))
    return Attribution(category, site, tuple(known))


def site_of(stacks: StackTable, index: int) -> Site:
    """The site of one stack, by its index in the table (-1: unknown)."""
    stack, origin = stacks[index], stacks.origin(index)
    frame = first_of_user(stack)
    operator = origin.operator
    inner = stack[: stack.index(frame)] if frame in stack else stack
    if not operator and inner:
        operator = _operator(inner)
    return Site(
        frame.filename, frame.line, frame.name, module=origin.module, operator=operator
    )


def _operator(inner: Stack) -> str:
    """What the frames that a line called run: PyTorch's own function, innermost, or of
    C++ frames the node of autograd's, or the operator."""
    if not is_native(inner[0].filename):
        return inner[0].name
    # The outermost of each: what the program called, not what that is made of.
    for pattern in _NATIVE_OPERATORS:
        for frame in reversed(inner):
            if match := pattern.search(frame.name, 0, _MOST_NAME):
                return match[1]
    return ""


def _categories(
    phase: npt.NDArray[np.uint8],
    row: Int64Array,
    end: Int64Array,
    labels: tuple[Int64Array, Int64Array],
) -> npt.NDArray[np.uint8]:
    """What each buffer holds, by its labels, or else by what ran when it was made.

    labels: their codes, and the buffers that they tell of.
    """
    category = np.zeros(len(row), dtype=np.uint8)
    forward = row[phase == Phase.FORWARD]
    category[phase == Phase.FORWARD] = Category.ACTIVATIONS
    category[phase > Phase.FORWARD] = Category.TEMPORARIES
    # What the program makes itself is for the forward pass that it lives to see.
    next_forward = np.searchsorted(forward, row)
    after = np.append(forward, np.iinfo(np.int64).max)[next_forward]
    outside = phase == Phase.OUTSIDE
    category[outside & (after < end)] = Category.INPUTS
    category[outside & (after >= end)] = Category.TEMPORARIES
    code, buffer = labels
    for strong in reversed(_STRONGEST_FIRST):
        chosen = buffer[code == strong]
        if strong is Category.INPUTS:  # what a module made and another one is given
            chosen = chosen[phase[chosen] <= Phase.OUTSIDE]
        category[chosen] = strong
    return category


def labels(events: Columns) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The rows of LABEL events, and of the allocations they describe; shape (k,) each.

    A label of an address where nothing is live describes nothing, and is left out.
    """
    counted = np.isin(
        events.action, [Action.ALLOC, Action.FREE_COMPLETED, Action.LABEL]
    )
    rows = np.flatnonzero(counted).astype(np.int32)
    order = np.lexsort((rows, events.address[rows], events.device[rows]))
    rows = rows[order]
    action, address = events.action[rows], events.address[rows]
    device = events.device[rows]
    # Of each row, the place of the last allocation or free up to it.
    at = np.where(action != Action.LABEL, np.arange(len(rows)), -1)
    last = np.maximum.accumulate(at) if len(at) else at
    label = np.flatnonzero((action == Action.LABEL) & (last >= 0))
    block = last[label]
    live = (
        (action[block] == Action.ALLOC)
        & (address[block] == address[label])
        & (device[block] == device[label])
    )
    return rows[label[live]], rows[block[live]]


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
