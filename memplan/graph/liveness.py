"""How many bytes of activations are live while each operator runs.

Storages count, not values: a view takes nothing, and a storage is freed after the last
use of any value in it. Parameters, buffers and inputs belong to the caller and take
nothing. Some operators write their result over an operand that nobody needs later.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.graph.program import (
    Loop,
    Meta,
    Op,
    Program,
    Ref,
    Roots,
    Step,
    refs,
    results,
)
from memplan.graph.workspace import temporaries

if TYPE_CHECKING:
    import torch


def slice_written(
    x: torch.Tensor,
    source: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> torch.Tensor:
    """slice_scatter over x itself."""
    import torch

    torch.ops.aten.slice.Tensor(x, dim, start, end, step).copy_(source)
    return x


def select_written(
    x: torch.Tensor, source: torch.Tensor, dim: int, index: int
) -> torch.Tensor:
    """select_scatter over x itself."""
    x.select(dim, index).copy_(source)
    return x


def softmax_written(
    x: torch.Tensor, dim: int, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """softmax over x itself. The kernel reads all of a row before it writes it."""
    import torch

    return torch.ops.aten._softmax.out(x, dim, False, out=x)


def log_softmax_written(
    x: torch.Tensor, dim: int, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """log_softmax over x itself."""
    import torch

    return torch.ops.aten._log_softmax.out(x, dim, False, out=x)


def batch_norm_written(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    *rest: object,
) -> torch.Tensor:
    """batch_norm in inference, over x itself. rest: training, momentum, eps, cudnn."""
    import torch

    given = (x, weight, bias, mean, variance, False, *rest[1:3])
    unused = [torch.empty(0, dtype=mean.dtype) for _ in range(2)]
    outs = dict(zip(("out", "save_mean", "save_invstd"), (x, *unused), strict=True))
    torch.ops.aten.native_batch_norm.out(*given, **outs)
    return x


WRITTEN: dict[str, Callable[..., object]] = {
    "aten.slice_scatter": slice_written,
    "aten.select_scatter": select_written,
    "aten.softmax": softmax_written,
    "aten.log_softmax": log_softmax_written,
    "aten.batch_norm": batch_norm_written,
}
# Known of the CPU's kernels alone, and of operands in row-major order.
ROWS = {"aten.softmax", "aten.log_softmax", "aten.batch_norm"}
SWAPPED = {"aten.add", "aten.mul"}  # where the second operand serves as well
NO_SUCH = {"aten.where"}


def overwrites(
    program: Program,
    last: dict[str, int],
    owned: dict[str, int],
    candidates: Candidates | None = None,
) -> dict[str, str]:
    """Each result that overwrites an operand's memory -> that operand.

    last, owned: what `lifetimes` returns. The operand has the same shape, strides and
    dtype, fills a storage of the program's own, and is not used later. Estimates and
    generated code both follow this function. candidates: see `may_overwrite`.
    """
    ends = dict(last)
    merged: dict[str, str] = {}
    found: dict[str, str] = {}
    for i, op in enumerate(program.ops):
        for name in may_overwrite(program, op, candidates):
            root: str = program.roots[name]
            owner = merged.get(root, root)
            own = owner in owned or program.totals.get(owner) == op.name
            if own and ends[owner] == i:
                found[op.name] = name
                merged[op.name] = owner
                ends[owner] = ends[op.name]
                break
    return found


Candidates = Callable[[Op], list[str]]
"""Names of the operands over which a kernel can write an operator's result."""


def may_overwrite(
    program: Program, step: Step, candidates: Candidates | None = None
) -> list[str]:
    """Operands that a result may overwrite if nothing needs them later.

    The likeliest first. They have the result's shape, strides and dtype, fill a
    storage, and are read once. candidates: those that the kernels allow; by default
    what PyTorch's operators do in place.
    """
    if not isinstance(step, Op) or program.roots[step.name] != step.name:
        return []
    meta = program.metas[step.name]
    if step.key in ROWS and (meta.device != "cpu" or not meta.contiguous):
        return []
    found = []
    for name in (candidates or _candidates)(step):
        root = program.roots[name]
        if (
            isinstance(root, str)
            and root in program.metas  # else it is from outside a loop
            and program.metas[name] == meta
            and _fills(program.metas[name], program.metas[root])
            and not _read_twice(program, step, name, root)
        ):
            found.append(name)
    return found


def _fills(view: Meta, owner: Meta) -> bool:
    """Whether a view is all of a value's storage."""
    return view == owner or (
        view.contiguous and owner.contiguous and view.bytes == owner.bytes
    )


def in_place(op: Op) -> Callable[..., object] | None:
    """The overload or function that writes over its first argument, or None."""
    import torch

    if op.key in WRITTEN:
        return WRITTEN[op.key]
    overload = getattr(op.target, "_overloadname", None)
    if overload is None or op.key in NO_SUCH:
        return None
    name = op.key.removeprefix("aten.")
    packet = getattr(torch.ops.aten, f"{name}_", None)
    if packet is None:
        return None
    names = packet.overloads()
    if overload == "Tensor_Scalar" and "Scalar" in names:
        scalar: Callable[..., object] = packet.Scalar
        return scalar
    found: Callable[..., object] | None = getattr(packet, overload, None)
    return found if overload in names else None


def _candidates(op: Op) -> list[str]:
    """Operands that the result may overwrite, the likeliest first."""
    if not op.args or in_place(op) is None:
        return []
    tensors = [arg.name for arg in op.args[:2] if isinstance(arg, Ref)]
    first = tensors[:1] if isinstance(op.args[0], Ref) else []
    if op.key in SWAPPED and len(tensors) == 2 and not op.kwargs:
        return tensors
    return first


def _read_twice(program: Program, op: Op, name: str, root: str) -> bool:
    """Whether the operator also reads that memory through another operand."""
    taken = op.operands()
    return taken.count(name) > 1 or any(
        program.roots[other] == root for other in taken if other != name
    )


@dataclass(frozen=True)
class Profile:
    """Live bytes along a program.

    live: bytes while each of `program.ops` runs, with its results and temporaries.
    after: bytes when it is done. inner: of a loop, along its body; None of operators.
    """

    live: list[int]
    after: list[int]
    inner: list[Profile | None]

    @property
    def peak(self) -> int:
        """The largest of `live`; 0 for an empty program."""
        return max(self.live, default=0)

    @property
    def at(self) -> int:
        """The first position of the peak."""
        return self.live.index(self.peak)

    def levels(self) -> Iterator[int]:
        """The bytes while each operator runs, those within loops in their place."""
        for live, inner in zip(self.live, self.inner, strict=True):
            if inner is None:
                yield live
            else:
                outside = live - inner.peak
                yield from (outside + each for each in inner.levels())


Beside = Callable[[Program, Op], int]
Bodies = Callable[[Loop], Iterable[Program]]
"""What runs in a loop's iterations that differ."""


def one_body(loop: Loop) -> list[Program]:
    """The iteration that a loop's body describes, for all."""
    return [loop.body]


def profile(
    program: Program,
    overwriting: bool = True,
    beside: Beside = temporaries,
    candidates: Candidates | None = None,
    bodies: Bodies = one_body,
) -> Profile:
    """The live bytes along `program`, those within loops included.

    overwriting: whether results that `overwrites` puts over an operand take no bytes;
    eager modules write them beside it. beside: the bytes that an operator needs beside
    operands and results. candidates: see `overwrites`. bodies: of a loop; that which
    needs most counts.
    """
    if overwriting:
        last, owned = held_storages(program, candidates)
    else:
        last, owned = lifetimes(program)
    dying: dict[int, int] = {}
    for root, end in last.items():
        if root in owned:
            dying[end] = dying.get(end, 0) + owned[root]
    found = Profile([], [], [])
    now = 0
    for i, step in enumerate(program.ops):
        now += sum(owned.get(root, 0) for root in owners(program, step))
        inner = _inner(step, beside, bodies) if isinstance(step, Loop) else None
        extra = extra_bytes(program, step, beside) if inner is None else inner.peak
        found.live.append(now + extra)
        found.inner.append(inner)
        now -= dying.get(i, 0)
        found.after.append(now)
    return found


def _inner(loop: Loop, beside: Beside, bodies: Bodies) -> Profile:
    found = (profile(each, beside=beside, bodies=bodies) for each in bodies(loop))
    return max(found, key=lambda each: each.peak)


def held_storages(
    program: Program, candidates: Candidates | None = None
) -> tuple[dict[str, int], dict[str, int]]:
    """`lifetimes` if results overwrite operands: an overwritten storage lives as long
    as the last result in it, which owns none."""
    last, owned = lifetimes(program)
    holder: dict[str, str] = {}
    for name, operand in overwrites(program, last, owned, candidates).items():
        root: str = program.roots[operand]
        holder[name] = holder.get(root, root)
        last[holder[name]] = last[name]
    return last, {root: size for root, size in owned.items() if root not in holder}


def lifetimes(program: Program) -> tuple[dict[str, int], dict[str, int]]:
    """The position of each storage's last use, and the bytes of those owned here.

    Storages are named by their root. Outputs live past the end, at `len(program.ops)`;
    unused results die where they are made, and so do the outputs of a loop's body,
    which are copied into buffers at once.
    """
    last: dict[str, int] = {}
    owned: dict[str, int] = {}
    roots: dict[str, Roots] = program.roots
    for i, step in enumerate(program.ops):
        for root in owners(program, step):
            owned[root] = bytes_of(program, root)
        for name in (*step.operands(), *results(step)):
            found: Roots = roots[name]
            if isinstance(found, str):
                last[found] = i
            else:
                last.update(dict.fromkeys(found, i))
    for name in () if program.ranges else refs(program.outputs):
        for root in roots_of(program, name):
            last[root] = len(program.ops)
    return last, owned


def results_bytes(program: Program) -> int:
    """Bytes of what a program makes and returns: no way to run it needs less."""
    _, owned = lifetimes(program)
    sizes: dict[str, int] = {}
    for name in refs(program.outputs):
        meta = program.metas[name]
        for root in owned.keys() & set(roots_of(program, name)):
            size = min(owned[root], meta.bytes) if isinstance(meta, Meta) else 0
            sizes[root] = max(size, sizes.get(root, 0))
    return sum(sizes.values())


def owners(program: Program, step: Step) -> list[str]:
    """The storages that a step makes, by their root."""
    if isinstance(step, Loop):
        return [each.buffer for each in step.made() if each.owned]
    root = program.roots[step.name]
    if isinstance(root, tuple):
        own = f"{step.name}["
        return list(dict.fromkeys(each for each in root if each.startswith(own)))
    return [step.name] if root == step.name else []


def roots_of(program: Program, name: str) -> list[str]:
    """The storages that a value lies in: one, or several for a tuple."""
    root = program.roots[name]
    return list(root) if isinstance(root, tuple) else [root]


def follow(program: Program, step: Step) -> None:
    """Enter where a step's views lie if their operand has been replaced: in the memory
    of the new one."""
    if not isinstance(step, Op) or not step.operands():
        return
    operands = step.operands()
    source = program.roots[operands[0]]
    if step.target is operator.getitem:
        program.roots[step.name] = source[step.args[1]]
        return
    valid = {root for name in operands for root in roots_of(program, name)}

    def lies(root: Roots) -> Roots:
        return root if root in valid or root.split("[")[0] == step.name else source

    old = program.roots[step.name]
    program.roots[step.name] = (
        tuple(map(lies, old)) if isinstance(old, tuple) else lies(old)
    )


def bytes_of(program: Program, root: str) -> int:
    """The bytes of a storage that is named by its root."""
    name, bracket, index = root.partition("[")
    meta = program.metas[name]
    if bracket:
        meta = meta[int(index[:-1])]
    return storage_bytes(meta)


@functools.lru_cache(maxsize=1 << 16)
def storage_bytes(meta: Meta) -> int:
    """The bytes that the allocator provides, including holes between elements."""
    if not meta.elements:
        return 0
    reach = sum(
        (size - 1) * stride
        for size, stride in zip(meta.shape, meta.strides, strict=True)
    )
    return max(meta.bytes, (reach + 1) * int(meta.dtype.itemsize))


def extra_bytes(program: Program, step: Step, beside: Beside) -> int:
    """Bytes that live only while a step runs: temporaries, or all of a loop's body."""
    if isinstance(step, Op):
        return beside(program, step)
    return profile(step.body, beside=beside).peak
