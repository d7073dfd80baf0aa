"""Call sites: the line, module and operator of each request, and its category.

The native recorder reads the line itself. This module reports to it which modules run,
when an optimizer steps, and which blocks hold parameters, gradients, optimizer state
and inputs.
"""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import os
import sys
import sysconfig
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import memplan.version
from memplan.native import _alloc
from memplan.recording import target
from memplan.recording.cuda_observer import CudaObserver
from memplan.recording.labels import Labels, parameters_in, parameters_of, unseen
from memplan.trace.sites import NO_FILES
from memplan.trace.trace import Category

# A step gets longer by this multiple of the timed cost of call sites: they evict the
# program's code and data from the core's caches, and hooks are not timed. Measured as
# the difference between recordings with sites and without: 4 for training a perceptron,
# 3 for a convolutional network's inference, 2 for training a transformer; up to 6 on a
# core that other programs use.
_DISPLACED = 3
SITE, ALL = 1, 2  # as `Depth` of memplan/native/alloc/stacks.h


class Sites:
    """Reports modules and optimizers to the recorder, from `start` to `stop`."""

    _active: Sites | None = None

    def __init__(
        self, depth: int, cpu: bool = True, observer: CudaObserver | None = None
    ) -> None:
        """depth: SITE for the requesting line alone, ALL for its whole stack. cpu:
        record the CPU's blocks; observer: CUDA's, once it has begun."""
        self._depth = depth
        self._cpu, self._observer = cpu, observer
        self._handles: list[Any] = []
        self._after: Any = None
        self._watched: Any = None  # the method through which modules are called
        self._labels = Labels(self._name_module, _label, 0)
        self._parts: dict[int, weakref.ref[Any]] = {}  # of roots that were met
        self._labelling_ns = 0  # time spent looking at outermost modules

    def prepare(self) -> None:
        """Hook the end of an optimizer's step.

        Hooks that may remove themselves while they run must be registered after this.
        """
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._after = register_optimizer_step_post_hook(_alloc.optimizer_stepped)

    def start(self) -> None:
        """Watch modules and hook optimizers."""
        import torch
        from torch.optim import optimizer

        folder = Path(torch.__file__).parent
        _alloc.note_stacks(
            self._depth,
            runner=target.__file__,
            foreign=list(foreign_files()),
            torch_library=str(folder / "lib" / "libtorch_cpu.so"),
            describe=operator_at,
            current_node=getattr(torch._C, "_current_autograd_node", None),
            current_task=getattr(torch._C, "_current_graph_task_id", None),
        )
        self._see()
        if self._observer is not None:
            self._observer.listener = self._see
        self._watched = torch.nn.Module._call_impl
        _alloc.watch_sites(
            self._watched, self._entering, *_tensors_of(torch), int(Category.INPUTS)
        )
        _watch_optimizers(torch, self._stepping, self._labels.state)
        before = optimizer.register_optimizer_step_pre_hook(_alloc.optimizer_begins)
        self._handles = [before]
        Sites._active = self

    def stop(self) -> None:
        """Remove the hooks, after labelling gradients, state and parameters."""
        if Sites._active is not self:
            return
        self._labels.all()
        self.let_go()

    def let_go(self) -> None:
        """Remove the hooks, except one that may be running: see `close`."""
        Sites._active = None
        torch = sys.modules["torch"]
        _alloc.watch_sites(self._watched, None, *_tensors_of(torch), 0)
        _watch_optimizers(torch, None, None)
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def close(self) -> None:
        """Remove the last hook; do not call this while an optimizer's hooks run."""
        if self._after is not None:
            self._after.remove()
            self._after = None

    def counts(self) -> tuple[int, int, int]:
        """Requests, module calls and nanoseconds of labelling so far."""
        requests, _, calls, _ = _alloc.sites_cost()
        return requests, calls, self._labelling_ns

    def took_ns(self, since: tuple[int, int, int]) -> int:
        """Estimated time of call sites since `counts` returned `since`, over all
        threads, without the cost of recording itself."""
        requests, request_ns, calls, call_ns = _alloc.sites_cost()
        asked = (requests - since[0]) * request_ns
        called = (calls - since[1]) * call_ns
        return _DISPLACED * (asked + called + self._labelling_ns - since[2])

    def _see(self) -> None:
        """Label blocks on the devices recorded by now."""
        cuda = self._observer is not None and self._observer.began
        _alloc.label_devices(self._cpu, cuda)

    def _entering(self, module: Any, arguments: tuple[Any, ...]) -> None:
        """The outermost module of a thread is about to be called.

        The recorder handles known modules with plain tensors itself.
        """
        # This comes first: a compiler may trace this function, and knows no clock.
        if sys.modules["torch"].compiler.is_compiling():
            return
        begin = time.perf_counter_ns()
        known = self._parts.get(id(module))
        if known is not None and known() is module:
            # A part by itself keeps its name. A backward pass may make its call again,
            # and gives it activations.
            if in_backward():
                return
        elif not _alloc.is_known(module):
            self._meet(module)
        # Only without an optimizer: walking all parameters is slow.
        if _alloc.gradients_wait():
            _alloc.gradients_noted()
            self._labels.gradients(parameters_in(module))
        self._labels.inputs(arguments)
        self._labelling_ns += time.perf_counter_ns() - begin

    def _meet(self, root: Any) -> None:
        """Register the submodules of an outermost module."""
        held = self._labels.meet(root)
        self._parts.pop(id(root), None)
        _alloc.know(root)
        self._labels.parameters(held)

    def _name_module(self, name: str, part: Any) -> int:
        self._parts[id(part)] = weakref.ref(part)
        return _alloc.name_module(name, part)

    def _stepping(self, optimizer: Any) -> None:
        """An optimizer's step begins.

        The recorder handles known optimizers with plain tensors itself.
        """
        if not _alloc.is_known(optimizer):
            _alloc.know(optimizer)
            self._labels.meet_optimizer(optimizer)
        self._labels.gradients(parameters_of(optimizer))
        _alloc.set_optimizer(True, above=1)


@functools.cache
def foreign_files() -> tuple[str, ...]:
    """Path prefixes of files that are not the program's own: PyTorch, Python's standard
    library and memplan. Other libraries count as the program's.
    """
    torch_folder = Path(sys.modules["torch"].__file__ or "").parent
    own = Path(memplan.version.__file__).parent
    python = sysconfig.get_path("stdlib")
    # Installed packages lie inside Python's own folder or beside it.
    files = sorted(
        entry for entry in os.listdir(python) if not entry.endswith("-packages")
    )
    within = [os.path.join(python, entry) for entry in files]
    return (f"{torch_folder}{os.sep}", f"{own}{os.sep}", *NO_FILES, *within)


def _watch_optimizers(torch: Any, begins: Any, changed: Any) -> None:
    tensor, modes = _tensors_of(torch)
    parameter, gradients = torch.nn.Parameter, int(Category.GRADIENTS)
    _alloc.watch_optimizers(begins, changed, tensor, parameter, modes, gradients)


def _tensors_of(torch: Any) -> tuple[type, Callable[[], int]]:
    """The class of plain tensors, and the function that counts active modes."""
    return torch.Tensor, torch._C._len_torch_function_stack


def in_backward() -> bool:
    """Whether this thread runs a backward pass."""
    task = getattr(sys.modules["torch"]._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


def _label(tensors: Sequence[Any], category: Category, modules: Sequence[int]) -> None:
    """Report to the recorder what these tensors' blocks hold, and for which modules.

    Skips None and tensors without a block on a recorded device.
    """
    with unseen():
        _alloc.label_tensors(list(tensors), list(modules), int(category), _fake_class())


def _fake_class() -> type | None:
    """The class of fake tensors: they have no address, and torch warns when asked."""
    imported = sys.modules.get("torch._subclasses.fake_tensor")
    return getattr(imported, "FakeTensor", None)


def _let_go_in_child() -> None:
    """A forked child is not recorded."""
    if Sites._active is not None:
        Sites._active.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)


_OF_SYMBOL = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "floor_divide",
    "%": "remainder",
    "@": "matmul",
    "**": "pow",
    "&": "bitwise_and",
    "|": "bitwise_or",
    "^": "bitwise_xor",
    "<<": "bitwise_left_shift",
    ">>": "bitwise_right_shift",
    "<": "lt",
    "<=": "le",
    "==": "eq",
    "!=": "ne",
    ">": "gt",
    ">=": "ge",
    "[]": "index",
}
_OF_OPCODE = {
    "UNARY_NEGATIVE": "neg",
    "UNARY_INVERT": "bitwise_not",
    "BINARY_SUBSCR": "index",
    "BINARY_SLICE": "index",
    "STORE_SUBSCR": "copy_",
    "STORE_SLICE": "copy_",
}
_MOST_SOURCE = 20_000  # characters of one call


def operator_at(code: CodeType, offset: int) -> str:
    """The operator that the instruction at `offset` runs: "linear", "add", "matmul".

    This is the last name of the called expression in the source, or the function's own
    name if the source does not show it. offset: bytes, as `frame.f_lasti`.
    """
    for found in dis.get_instructions(code):
        if found.offset == offset:
            return _name(code, found) or code.co_name
    return code.co_name


def _name(code: CodeType, found: dis.Instruction) -> str:
    if found.opname in _OF_OPCODE:
        return _OF_OPCODE[found.opname]
    if found.opname.startswith(("BINARY_", "INPLACE_", "COMPARE_")):
        symbol = found.argrepr.replace("bool(", "").rstrip(")")
        return _in_place(symbol)
    if "CALL" in found.opname:
        return _called(code, found)
    return ""


def _in_place(symbol: str) -> str:
    """`symbol` as an operator's name; += is "add_"."""
    if symbol in _OF_SYMBOL:
        return _OF_SYMBOL[symbol]
    plain = symbol.removesuffix("=")
    return _OF_SYMBOL[plain] + "_" if plain in _OF_SYMBOL else ""


def _called(code: CodeType, found: dis.Instruction) -> str:
    """The last name of the called expression, from the source; "" if unknown."""
    source = _source(code, found)
    try:
        call = ast.parse(f"({source})", mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(call, ast.Call):
        return ""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _source(code: CodeType, found: dis.Instruction) -> str:
    """The source text of an instruction; "" if unknown."""
    place = getattr(found, "positions", None)  # from Python 3.11 on
    if place is None or None in place:
        return ""
    lines = linecache.getlines(code.co_filename)[place.lineno - 1 : place.end_lineno]
    if not lines:
        return ""
    encoded = [line.encode() for line in lines]  # columns count bytes
    encoded[-1] = encoded[-1][: place.end_col_offset]
    encoded[0] = encoded[0][place.col_offset :]
    source = b"".join(encoded).decode(errors="replace")
    return source if len(source) <= _MOST_SOURCE else ""
