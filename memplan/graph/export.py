"""A model as a functional ATen graph, with the time that takes bounded."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import operator
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from memplan.errors import InputError

if TYPE_CHECKING:
    from sympy import Expr
    from torch import Tensor, fx, nn
    from torch._ops import OpOverload
    from torch.export import ExportedProgram, ExportGraphSignature, ShapesCollection

Sizes = list[tuple["Tensor", set[int]]]  # dimensions of inputs

EXPORT_SECONDS = 150.0  # an unrolled scan of long sequences takes for ever
SOON = 0.002  # seconds until the next try to stop
AGAIN = 1.0  # seconds until one after an exception that something may have swallowed
# Functions in which, and in what they call, an export may not be stopped: the last runs
# a module's code when it is imported.
WHOLLY = {"__enter__", "__exit__", "__del__", "_call_with_frames_removed"}
# Torch's own modules in which an export may be stopped.
BETWEEN = (
    "torch.fx.interpreter",
    "torch.fx.node",
    "torch.fx.graph",
    "torch.utils._sympy",
)


class NotExportableError(InputError):
    """The model has no whole graph: control flow on data, or no fake kernels."""


class DataDependentError(NotExportableError):
    """The model's code reads the values of tensors."""


@dataclass(frozen=True)
class Exported:
    """What `torch.export` gave: graph, signature and constants.

    graph: a torch.fx.Graph of functional ATen operators, parameters and buffers among
    its placeholders. signature: which placeholder is what. constants: the tensors that
    the model's code made. conditions: of symbols for sizes left open; where one is not
    true, other operators may run. seconds: that it took.
    """

    graph: fx.Graph
    signature: ExportGraphSignature
    constants: dict[str, Tensor]
    conditions: tuple[Expr, ...] = ()
    seconds: float = 0.0


def export(
    model: nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    seconds: float = EXPORT_SECONDS,
    quick: bool = False,
    sizes: Sizes | None = None,
) -> Exported:
    """Export `model` as it runs on these arguments, in inference.

    seconds: the time limit; in a thread that is not the main one there is none. quick:
    whether the graph may have operators as the model calls them, composed views among
    them, and those of `functional`, which overwrite an operand: it takes a third of the
    time. sizes: dimensions that are left open where torch can, as symbols. Raises
    NotExportableError, in one line, where torch cannot: DataDependentError
    where the code reads the values of tensors.
    """
    import torch
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    began = time.monotonic()
    try:
        with silence(), torch.no_grad(), _limited(seconds):
            program = torch.export.export(
                model, args, kwargs, strict=False, dynamic_shapes=_dynamic(sizes)
            )
            if not (quick and _is_plain(program.graph)):
                program = program.run_decompositions({})
    except _TimeUpError:
        raise NotExportableError(
            f"torch.export takes more than {seconds:.0f} s on this model"
        ) from None
    except NotExportableError:
        raise
    except Exception as error:  # torch.export lets errors of any kind through
        reads = isinstance(error, GuardOnDataDependentSymNode)
        raise (DataDependentError if reads else NotExportableError)(
            f"torch.export cannot take this model: {first_line(error)}"
        ) from error
    return Exported(
        program.graph,
        program.graph_signature,
        dict(program.constants),
        _conditions(program) if sizes else (),
        time.monotonic() - began,
    )


def _dynamic(sizes: Sizes | None) -> ShapesCollection | None:
    from torch.export import Dim, ShapesCollection

    if not sizes:
        return None
    found = ShapesCollection()
    for tensor, dims in sizes:
        found[tensor] = dict.fromkeys(dims, Dim.AUTO)
    return found


def _conditions(program: ExportedProgram) -> tuple[Expr, ...]:
    """What torch took for true of the symbols in an exported graph."""
    from sympy import Ge, Le

    found: list[Expr] = []
    for symbol, span in program.range_constraints.items():
        found += [Ge(symbol, span.lower), Le(symbol, span.upper)]
    for node in program.graph.nodes:
        value = node.meta.get("val")
        for size in getattr(value, "shape", ()):
            if not isinstance(size, int):
                env = size.node.shape_env  # where symbols that are equal are one
                return (*found, *(env.replace(each.expr) for each in env.guards))
    return tuple(found)


def _is_plain(graph: fx.Graph) -> bool:
    """Whether operators write at most to whole values of the graph's own, of which
    nobody has another view."""
    import torch

    order = {node: i for i, node in enumerate(graph.nodes)}
    views: list[tuple[int, int, int]] = []  # storage, when made, and last used
    own: set[int] = set()  # storages of values that are not views
    whole: set[fx.Node] = set()  # values that are not views
    for i, node in enumerate(graph.nodes):
        if node.op != "call_function":
            continue
        here = storage_of(node)
        taken = {storage_of(each) for each in node.all_input_nodes}
        last = max((order[each] for each in node.users), default=0)
        if node.target is operator.getitem or here in taken:
            views.append((here, i, last))
        else:
            own.add(here)
            whole.add(node)
        if node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            return False
        if node.target._schema.is_mutable:
            if here not in own or node.args[0] not in whole or functional(node) is None:
                return False
            whole.add(node)
            views.pop()  # it is the whole value
            if any(made < i < end for root, made, end in views if root == here):
                return False
    return True


def storage_of(node: fx.Node) -> int:
    """The storage of a node's tensor; one of its own for other values."""
    value = node.meta.get("val")
    if not hasattr(value, "untyped_storage"):
        return id(node)
    return int(value.untyped_storage()._cdata)


def functional(node: fx.Node) -> OpOverload | None:
    """The operator that computes what one writes over its first operand; None where
    there is none of the same type."""
    import torch

    target, (first, *rest) = node.target, node.args
    packet, _, overload = target._schema.name.removeprefix("aten::").rpartition("_")
    found = getattr(torch.ops.aten, packet, None) if not overload else None
    given = [each.meta["val"] for each in node.all_input_nodes]
    dtypes = {each.dtype for each in given if hasattr(each, "dtype")}
    if found is None or len(dtypes) != 1 or first in rest:
        return None
    return getattr(found, target._overloadname, None)


_ERROR = re.compile(r"(?:\w+: )*?(\w+(?:Error|Exception): (?!\w+Error: ).*)")


def first_line(error: BaseException) -> str:
    """The error's kind and the first line of what it says; of TorchScript's errors, the
    error within."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].endswith("in the TorchScript interpreter."):
        inner = [found[1] for line in lines if (found := _ERROR.match(line))]
        return inner[-1] if inner else f"{type(error).__name__}: {lines[0]}"
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Torch prints whole graphs when it fails; what went wrong is in the error."""
    unheard = io.StringIO()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(unheard),
            contextlib.redirect_stderr(unheard),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


class _TimeUpError(BaseException):
    """Not an Exception, so that nothing in between takes it for a failed trial."""


def _may_stop(frame: FrameType | None) -> bool:
    """Whether an exception may be raised in a frame: in the model's code, in sympy's,
    or between the operators of a graph, but not while a context begins or ends, as the
    stacks of torch's modes would then stay as they are, nor while a module is imported,
    as half of it would have run, nor in callbacks of the garbage collector, which
    swallows it."""
    module = frame.f_globals.get("__name__", "") if frame else ""
    package = module.partition(".")[0]
    foreign = package not in {"torch", "memplan", *sys.stdlib_module_names}
    if not foreign and not module.startswith(BETWEEN):
        return False
    collecting = {getattr(each, "__code__", None) for each in gc.callbacks}
    while frame is not None and frame.f_code is not export.__code__:
        if frame.f_code.co_name in WHOLLY or frame.f_code in collecting:
            return False
        frame = frame.f_back
    return True


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_: int, frame: FrameType | None) -> None:
        may = _may_stop(frame)
        signal.setitimer(signal.ITIMER_REAL, AGAIN if may else SOON)
        if may:
            raise _TimeUpError

    # The program's own timer stops first: if it rang now, that would be `stop`'s.
    left, every = signal.setitimer(signal.ITIMER_REAL, 0)
    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, stop)
    if before is None:  # set by other code than Python's, and not to be put back
        before = signal.SIG_DFL
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # a timer of the program's own goes on; one that is due is due now
            rest = left - (time.monotonic() - began)
            signal.setitimer(signal.ITIMER_REAL, max(rest, 1e-6), every)
