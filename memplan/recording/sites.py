"""Which line, module and operator asks for memory, and what it is for, while it runs.

The recorder notes the line itself; here it is told what modules run, when an optimizer
does, and which blocks hold parameters, gradients, an optimizer's state and inputs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import sysconfig
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import memplan.version
from memplan.native import _alloc
from memplan.recording import target
from memplan.recording.cuda_observer import CudaObserver
from memplan.recording.module_source import named_parts
from memplan.recording.operators import operator_at
from memplan.trace.category import Category
from memplan.trace.user_frames import NO_FILES

# A step becomes longer by so many times what noting sites takes by the clock: after it,
# the program's own code and data are out of the core's caches, and hooks are not timed.
# Measured, as the difference between recordings with sites and without: 4 times of a
# perceptron's training, 3 of an inference of convolutions, 2 of a transformer's
# training; on a core that others use, up to 6.
_DISPLACED = 3
SITE, ALL = 1, 2  # as `Depth` of memplan/native/alloc/stacks.h


class Sites:
    """Tells the recorder of modules and optimizers, from `start` to `stop`."""

    _active: Sites | None = None

    def __init__(
        self, depth: int, cpu: bool = True, observer: CudaObserver | None = None
    ) -> None:
        """depth: SITE, to note the one line that asks, or ALL, for all its calls. cpu:
        the CPU's blocks are recorded; observer: CUDA's, once that has begun."""
        self._depth = depth
        self._cpu, self._observer = cpu, observer
        self._handles: list[Any] = []
        self._after: Any = None
        self._watched: Any = None  # what calls of modules go through
        # Of the modules of parameters, by id, as the recorder has them.
        self._numbers: dict[int, int] = {}
        self._roots: dict[int, weakref.ref[Any]] = {}
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._labelling_ns = 0  # what it took to look at outermost modules

    def prepare(self) -> None:
        """Hook what comes after an optimizer's step.

        Whoever may take its own hook off while it runs must hook after this.
        """
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._after = register_optimizer_step_post_hook(_alloc.optimizer_stepped)

    def start(self) -> None:
        """Watch modules, and hook optimizers."""
        import torch
        from torch.optim import optimizer

        folder = Path(torch.__file__).parent
        _alloc.note_stacks(
            self._depth,
            runner=target.__file__,
            foreign=foreign_files(folder),
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
        _watch_optimizers(torch, self._stepping, self._label_state)
        before = optimizer.register_optimizer_step_pre_hook(_alloc.optimizer_begins)
        self._handles = [before]
        Sites._active = self

    def stop(self) -> None:
        """Take the hooks off again, and say what is known at the end."""
        if Sites._active is not self:
            return
        for ref in self._optimizers.values():
            if (optimizer := ref()) is not None:
                _label_gradients(_parameters_of(optimizer))
                self._label_state(optimizer)
        for root in self._roots.values():
            if (module := root()) is not None:
                self._label_parameters(_parameters_in(module))
                _label_gradients(_parameters_in(module))
        self.let_go()

    def let_go(self) -> None:
        """Take the hooks off again, but for one that may be running: see `close`."""
        Sites._active = None
        torch = sys.modules["torch"]
        _alloc.watch_sites(self._watched, None, *_tensors_of(torch), 0)
        _watch_optimizers(torch, None, None)
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def close(self) -> None:
        """Take the last hook off; not to be called while an optimizer's hooks run."""
        if self._after is not None:
            self._after.remove()
            self._after = None

    def counts(self) -> tuple[int, int, int]:
        """Requests, calls of modules, and nanoseconds of labelling, so far."""
        requests, _, calls, _ = _alloc.sites_cost()
        return requests, calls, self._labelling_ns

    def took_ns(self, since: tuple[int, int, int]) -> int:
        """About what sites took, of all threads, since `counts` was that; without what
        recording takes anyway."""
        requests, request_ns, calls, call_ns = _alloc.sites_cost()
        asked = (requests - since[0]) * request_ns
        called = (calls - since[1]) * call_ns
        return _DISPLACED * (asked + called + self._labelling_ns - since[2])

    def _see(self) -> None:
        """Say what blocks hold on the devices that are recorded by now."""
        cuda = self._observer is not None and self._observer.began
        _alloc.label_devices(self._cpu, cuda)

    def _entering(self, module: Any, arguments: tuple[Any, ...]) -> None:
        """The outermost module of a thread is about to be called.

        Of one that is known, and gets plain tensors, the recorder takes note itself.
        """
        # First of all: a compiler may look at this, and knows no clock.
        if sys.modules["torch"].compiler.is_compiling():
            return
        begin = time.perf_counter_ns()
        if not _alloc.is_known(module):
            self._meet(module)
        # Without an optimizer; walking all parameters is slow, and mostly for nothing.
        if _alloc.gradients_wait():
            _alloc.gradients_noted()
            _label_gradients(_parameters_in(module))
        _label(list(_tensors_in(arguments)), Category.INPUTS)
        self._labelling_ns += time.perf_counter_ns() - begin

    def _meet(self, root: Any) -> None:
        """Name the parts of an outermost module."""
        self._roots[id(root)] = weakref.ref(root)
        _alloc.know(root)
        owners: dict[int, int] = {}  # of parameters: the first of those that share one
        held: dict[int, Any] = {}
        for name, part in named_parts(root):
            number = _alloc.name_module(name or type(root).__name__, part)
            for each in (*_own(part._parameters), *_own(part._buffers)):
                owners.setdefault(id(each), number)
                held.setdefault(id(each), each)
        # An id may have been that of a parameter that is gone.
        self._numbers.update(owners)
        self._label_parameters(held.values())

    def _stepping(self, optimizer: Any) -> None:
        """An optimizer's step begins.

        Of one that is known, and has plain tensors, the recorder takes note itself.
        """
        if not _alloc.is_known(optimizer):
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
            _alloc.know(optimizer)
            self._label_parameters(_parameters_of(optimizer))
        _label_gradients(_parameters_of(optimizer))
        _alloc.set_optimizer(True, above=1)

    def _label_parameters(self, parameters: Iterable[Any]) -> None:
        each = list(parameters)
        numbers = [self._numbers.get(id(parameter), 0) for parameter in each]
        _label(each, Category.PARAMETERS, numbers)

    def _label_state(self, optimizer: Any) -> None:
        tensors, numbers = [], []
        for parameter, state in optimizer.state.items():
            for tensor in _tensors_in(state):
                tensors.append(tensor)
                numbers.append(self._numbers.get(id(parameter), 0))
        _label(tensors, Category.OPTIMIZER_STATE, numbers)


def foreign_files(torch_folder: Path) -> list[str]:
    """What the paths of files begin with that are not the program's own.

    Libraries count as its own, but PyTorch, Python's own modules and memplan do not.
    """
    own = Path(memplan.version.__file__).parent
    python = sysconfig.get_path("stdlib")
    # What is installed lies within Python's own folder, or beside it.
    files = sorted(
        entry for entry in os.listdir(python) if not entry.endswith("-packages")
    )
    within = [os.path.join(python, entry) for entry in files]
    return [f"{torch_folder}{os.sep}", f"{own}{os.sep}", *NO_FILES, *within]


def _parameters_of(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _parameters_in(module: Any) -> Iterator[Any]:
    """Of it and its parts; whatever the program's own class has by that name."""
    held = (_own(part._parameters) for _, part in named_parts(module))
    return itertools.chain.from_iterable(held)


def _own(tensors: Any) -> list[Any]:
    """Of a module's own parameters or buffers, those that are there."""
    return [each for each in tensors.values() if each is not None]


def _watch_optimizers(torch: Any, begins: Any, changed: Any) -> None:
    tensor, modes = _tensors_of(torch)
    parameter, gradients = torch.nn.Parameter, int(Category.GRADIENTS)
    _alloc.watch_optimizers(begins, changed, tensor, parameter, modes, gradients)


def _tensors_of(torch: Any) -> tuple[type, Callable[[], int]]:
    """What is a plain tensor; and how many modes are told of what tensors are asked."""
    return torch.Tensor, torch._C._len_torch_function_stack


def _unseen() -> contextlib.AbstractContextManager[object]:
    """Within it, no code of the program's is told of what tensors are asked: neither
    its modes nor its classes."""
    disabled: contextlib.AbstractContextManager[object]
    disabled = sys.modules["torch"]._C.DisableTorchFunction()
    return disabled


def _label_gradients(parameters: Iterable[Any]) -> None:
    with _unseen():
        gradients = [parameter.grad for parameter in parameters]
    _label(gradients, Category.GRADIENTS)


def _label(tensors: list[Any], category: Category, modules: Sequence[int] = ()) -> None:
    """Tell the recorder what the blocks of these tensors hold, and for which modules.

    None is passed over, and what has no block on a device that is recorded.
    """
    with _unseen():
        _alloc.label_tensors(tensors, list(modules), int(category), _fake_class())


def _fake_class() -> type | None:
    """A program's fake tensors have no address, and torch warns of asking for one."""
    imported = sys.modules.get("torch._subclasses.fake_tensor")
    return getattr(imported, "FakeTensor", None)


def _tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """The tensors in lists, tuples and dicts of them."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4 and isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors_in(each, depth + 1)
    elif depth < 4 and isinstance(value, dict):
        yield from _tensors_in(list(value.values()), depth + 1)


def _let_go_in_child() -> None:
    """A forked child is another program."""
    if Sites._active is not None:
        Sites._active.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)
