"""How many bytes of activations are live while each operator runs.

Storages count, not values: what shares memory with another is not counted again, and
a storage is freed after the last use of anything that lies in it. Parameters, buffers
and inputs are the caller's and count nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memplan.graph.program import Loop, Meta, Op, Program, Step, refs, results
from memplan.graph.reuse import overwrites
from memplan.graph.workspace import temporaries


@dataclass(frozen=True)
class Profile:
    """Live bytes along a program.

    live: at each of `program.ops`, while it runs: its own results and temporaries, and
    what others left. after: what is left when it is done.
    """

    live: list[int]
    after: list[int]

    @property
    def peak(self) -> int:
        """The largest of `live`; 0 for an empty program."""
        return max(self.live, default=0)

    @property
    def at(self) -> int:
        """Where in the program the peak is, the first place."""
        return self.live.index(self.peak)


Beside = Callable[[Program, Op], int]


def profile(
    program: Program, overwriting: bool = True, beside: Beside = temporaries
) -> Profile:
    """The live bytes along `program`, those within loops included.

    overwriting: whether results that are written over an operand
    (`memplan.graph.reuse`) take no bytes; eager modules write them beside it. beside:
    the bytes that an operator needs beside operands and results.
    """
    last, owned = held_storages(program) if overwriting else lifetimes(program)
    dying: dict[int, int] = {}
    for root, end in last.items():
        if root in owned:
            dying[end] = dying.get(end, 0) + owned[root]
    live, after = [], []
    now = 0
    for i, step in enumerate(program.ops):
        now += sum(owned.get(root, 0) for root in owners(program, step))
        live.append(now + _extra(program, step, beside))
        now -= dying.get(i, 0)
        after.append(now)
    return Profile(live, after)


def held_storages(program: Program) -> tuple[dict[str, int], dict[str, int]]:
    """`lifetimes` where results lie over operands: only storages of their own are
    owned, and live as long as what lies over them."""
    last, owned = lifetimes(program)
    holder: dict[str, str] = {}
    for name, operand in overwrites(program, last, owned).items():
        root = program.roots[operand]
        holder[name] = holder.get(root, root)
        last[holder[name]] = last[name]
    return last, {root: size for root, size in owned.items() if root not in holder}


def lifetimes(program: Program) -> tuple[dict[str, int], dict[str, int]]:
    """Of each storage, the position of its last use, and its bytes if it is owned here.

    Storages are named by their root. What is an output lives past the end, at
    `len(program.ops)`; what nobody uses dies where it is made, and so does what a
    loop's body gives out: it is written away at once.
    """
    last: dict[str, int] = {}
    owned: dict[str, int] = {}
    roots = program.roots
    for i, step in enumerate(program.ops):
        for root in owners(program, step):
            owned[root] = bytes_of(program, root)
        for name in (*step.operands(), *results(step)):
            found = roots[name]
            if isinstance(found, str):
                last[found] = i
            else:
                last.update(dict.fromkeys(found, i))
    for name in () if program.ranges else refs(program.outputs):
        for root in roots_of(program, name):
            last[root] = len(program.ops)
    return last, owned


def owners(program: Program, step: Step) -> list[str]:
    """The storages that a step makes, by their root."""
    if isinstance(step, Loop):
        return [out.buffer for out in step.outputs if out.into is None]
    root = program.roots[step.name]
    if isinstance(root, tuple):
        own = f"{step.name}["
        return list(dict.fromkeys(each for each in root if each.startswith(own)))
    return [step.name] if root == step.name else []


def roots_of(program: Program, name: str) -> list[str]:
    """The storages that a value lies in: one, or several for a tuple."""
    root = program.roots[name]
    return list(root) if isinstance(root, tuple) else [root]


def bytes_of(program: Program, root: str) -> int:
    """The bytes of a storage that is named by its root."""
    name, bracket, index = root.partition("[")
    meta: Any = program.metas[name]
    if bracket:
        meta = meta[int(index[:-1])]
    return storage_bytes(meta)


@functools.lru_cache(maxsize=1 << 16)
def storage_bytes(meta: Meta) -> int:
    """What the allocator is asked for: a storage holds its holes too."""
    if not meta.elements:
        return 0
    reach = sum(
        (size - 1) * stride
        for size, stride in zip(meta.shape, meta.strides, strict=True)
    )
    return max(meta.bytes, (reach + 1) * int(meta.dtype.itemsize))


def _extra(program: Program, step: Step, beside: Beside) -> int:
    if isinstance(step, Op):
        return beside(program, step)
    return profile(step.body, beside=beside).peak
