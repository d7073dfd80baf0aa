"""Which line, module and operator asks for memory, and what it is for, while it runs.

The recorder notes the line itself; here it is told what modules run, when an optimizer
does, and which blocks hold parameters, gradients, an optimizer's state and inputs.
"""

from __future__ import annotations

import itertools
import os
import sys
import sysconfig
import warnings
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import memplan.version
from memplan.native import _alloc
from memplan.recording import target
from memplan.recording.cuda_observer import CudaObserver
from memplan.recording.operators import operator_at
from memplan.trace.category import Category

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
        # Of modules and parameters, by id, as the recorder has them.
        self._numbers: dict[int, int] = {}
        self._roots: dict[int, weakref.ref[Any]] = {}
        self._optimizers: dict[int, tuple[weakref.ref[Any], int]] = {}

    def sees(self, tensor: Any) -> bool:
        """Whether blocks of its device are recorded."""
        if tensor.is_cpu:
            return self._cpu
        return bool(
            self._observer is not None and self._observer.began and tensor.is_cuda
        )

    def prepare(self) -> None:
        """Hook what comes after an optimizer's step.

        Whoever may take its own hook off while it runs must hook after this.
        """
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._after = register_optimizer_step_post_hook(self._stepped)

    def start(self) -> None:
        """Hook modules and optimizers."""
        import torch
        from torch.nn.modules import module
        from torch.optim import optimizer

        folder = Path(torch.__file__).parent
        _alloc.note_stacks(
            self._depth,
            runner=target.__file__,
            foreign=foreign_files(folder),
            torch_library=str(folder / "lib" / "libtorch_cpu.so"),
            describe=operator_at,
            current_node=getattr(torch._C, "_current_autograd_node", None),
        )
        # The hooks tell compiled modules apart themselves.
        warnings.filterwarnings("ignore", "Using .torch.compile.*global hooks")
        self._handles = [
            module.register_module_forward_pre_hook(self._entered),
            module.register_module_forward_hook(self._left, always_call=True),
            optimizer.register_optimizer_step_pre_hook(self._stepping),
        ]
        Sites._active = self

    def stop(self) -> None:
        """Take the hooks off again, and say what is known at the end."""
        if Sites._active is not self:
            return
        for ref, _ in self._optimizers.values():
            if (optimizer := ref()) is not None:
                _label_gradients(_parameters_of(optimizer))
                self._label_state(optimizer)
        for root in self._roots.values():
            if (module := root()) is not None:
                self._label_parameters(module.parameters())
                _label_gradients(module.parameters())
        self.let_go()

    def let_go(self) -> None:
        """Take the hooks off again, but for one that may be running: see `close`."""
        Sites._active = None
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def close(self) -> None:
        """Take the last hook off; not to be called while an optimizer's hooks run."""
        if self._after is not None:
            self._after.remove()
            self._after = None

    def _entered(self, module: Any, arguments: tuple[Any, ...]) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        number = self._numbers.get(id(module), 0)
        if _alloc.enter_module(number) == 0:  # the outermost
            known = self._roots.get(id(module))
            if known is None or known() is not module:
                self._meet(module)
            if not self._optimizers:
                _label_gradients(module.parameters())
            given = [(tensor, 0) for tensor in _tensors_in(arguments)]
            _label(given, Category.INPUTS)

    def _left(self, *_: object) -> None:
        import torch

        if not torch.compiler.is_compiling():
            _alloc.leave_module()

    def _meet(self, root: Any) -> None:
        """Name the parts of an outermost module."""
        _alloc.leave_module()
        self._roots[id(root)] = weakref.ref(root)
        owners: dict[int, int] = {}  # of parameters: the first of those that share one
        for name, part in root.named_modules():
            own = name or type(root).__name__
            self._numbers[id(part)] = number = _alloc.name_module(own)
            for each in itertools.chain(
                part.parameters(recurse=False), part.buffers(recurse=False)
            ):
                owners.setdefault(id(each), number)
        # An id may have been that of a parameter that is gone.
        self._numbers.update(owners)
        _alloc.enter_module(self._numbers[id(root)])
        self._label_parameters(itertools.chain(root.parameters(), root.buffers()))

    def _stepping(self, optimizer: Any, *_: object) -> None:
        known = self._optimizers.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer), -1
            self._label_parameters(_parameters_of(optimizer))
        _label_gradients(_parameters_of(optimizer))
        _alloc.set_optimizer(True)

    def _stepped(self, optimizer: Any, *_: object) -> None:
        if Sites._active is not self:
            return
        _alloc.set_optimizer(False)
        ref, entries = self._optimizers.get(id(optimizer), (None, 0))
        if ref is not None and len(optimizer.state) != entries:
            self._optimizers[id(optimizer)] = ref, len(optimizer.state)
            self._label_state(optimizer)

    def _label_parameters(self, parameters: Iterable[Any]) -> None:
        each = [(p, self._numbers.get(id(p), 0)) for p in parameters]
        _label(each, Category.PARAMETERS)

    def _label_state(self, optimizer: Any) -> None:
        each = [
            (tensor, self._numbers.get(id(parameter), 0))
            for parameter, state in optimizer.state.items()
            for tensor in _tensors_in(state)
        ]
        _label(each, Category.OPTIMIZER_STATE)


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
    return [f"{torch_folder}{os.sep}", f"{own}{os.sep}", "<frozen", *within]


def _parameters_of(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _label_gradients(parameters: Iterable[Any]) -> None:
    _label([(p.grad, 0) for p in parameters], Category.GRADIENTS)


def _label(tensors: Iterable[tuple[Any, int]], category: Category) -> None:
    """Tell the recorder what the blocks of these tensors hold, and for which module.

    None is passed over.
    """
    active = Sites._active
    if active is None:
        return
    found: dict[int, tuple[list[int], list[int]]] = {}  # by GPU, -1 for the CPU
    # A program's fake tensors have no address, and torch warns of asking for one.
    imported = sys.modules.get("torch._subclasses.fake_tensor")
    fake = getattr(imported, "FakeTensor", ())
    for tensor, module in tensors:
        # Sparse tensors have no storage; those of other devices are no matter. Each
        # step of a program comes here: what is not raised costs nothing.
        try:
            if tensor is None or isinstance(tensor, fake) or not active.sees(tensor):
                continue
            address = tensor.untyped_storage().data_ptr()
            place = found.setdefault(tensor.get_device(), ([], []))
            place[0].append(address)
            place[1].append(module)
        except (RuntimeError, NotImplementedError, AttributeError):
            continue
    for device, (addresses, modules) in found.items():
        _alloc.label_blocks(addresses, modules, int(category), device)


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
