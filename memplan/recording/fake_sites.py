"""Call sites of a recording under fake tensors: line, module, operator and category.

A recording of real tensors gets them from the native recorder, by way of `Sites`. Here
every request passes through Python, and so do the labels.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from memplan.recording import target
from memplan.recording.activations import CallWrapper
from memplan.recording.labels import Labels, parameters_in, parameters_of
from memplan.recording.sites import foreign_files, in_backward, operator_at
from memplan.trace.stacks import NO_STACK, Frame, Origin, Phase, StackTable
from memplan.trace.trace import Category

_OWN = str(Path(__file__).parents[1])
_REACH = 256  # nodes that ask for nothing may lie between a node and a request

Place = tuple[CodeType, int]  # code, and the offset of an instruction in bytes


class FakeSites:
    """Knows for whom a request is, from `start` to `stop`; `table`: what it noted."""

    def __init__(
        self, whole: bool, label: Callable[[Any, Category, int], None]
    ) -> None:
        """whole: note whole stacks, not only the program's line. label: is told of a
        tensor, what it holds, and the index of a stack with its module."""
        self.table = StackTable()
        self._whole, self._label = whole, label
        self._hidden: tuple[str, ...] = (_OWN,)
        self._engine = ""
        self._wrapper = CallWrapper(self._called)
        self._handles: list[Any] = []
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}  # by id of a module
        self._labels = Labels(self._name_module, self._label_all, NO_STACK)
        self._modules: list[str] = []  # that run, the innermost last
        self._stepping = False
        self._outside = 0  # modules that ran when the step began
        self._wait = False  # for gradients to be labelled
        self._operators: dict[Place, str] = {}
        self._forward: dict[int, int] = {}  # stacks, by autograd's sequence number
        self._sequence = 0  # as the request before saw it
        self._node_place: Place | None = None  # of the request that made a node

    def prepare(self) -> None:
        """Hook the end of an optimizer's step, before anything else does."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._handles = [register_optimizer_step_post_hook(self._stepped)]

    def start(self, torch: Any) -> None:
        """Watch modules and optimizers."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        folder = Path(torch.__file__).parent
        # These call a mode's own functions.
        wrappers = "_compile.py", "_dynamo/eval_frame.py"
        self._hidden = (_OWN, *(str(folder / each) for each in wrappers))
        self._engine = str(folder / "autograd")
        self._handles.append(register_optimizer_step_pre_hook(self._begins))
        self._wrapper.start()

    def stop(self) -> None:
        """Stop watching, after labelling gradients, state and parameters."""
        if not self._wrapper.running:
            return
        self._wrapper.stop()
        self._labels.all()

    def close(self) -> None:
        """Remove the hooks of optimizers."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # -- requests ----------------------------------------------------------------

    def here(self) -> int:
        """The index of the caller's stack, without frames of memplan and of modes."""
        frames, place, in_engine = self._walk(sys._getframe(1))
        torch = sys.modules["torch"]
        before, self._sequence = self._sequence, torch.autograd._get_sequence_nr()
        if in_engine or not frames:
            return self._in_backward(torch, frames)
        made = self._sequence != before
        phase = self._phase(made, place)
        module = self._modules[-1] if self._modules else ""
        index = self.table.intern(frames, Origin(module, self._operator(place), phase))
        if made:
            self._forward.setdefault(self._sequence, index)
        return index

    def _walk(
        self, frame: FrameType | None
    ) -> tuple[tuple[Frame, ...], Place | None, bool]:
        """The frames that are noted, the innermost instruction, and whether autograd's
        engine asks, and none of the program's functions within it."""
        frames: list[Frame] = []
        place: Place | None = None
        found = in_engine = False
        while frame is not None and frame.f_code.co_filename != target.__file__:
            file = frame.f_code.co_filename
            if not file.startswith(self._hidden):
                place = place or (frame.f_code, frame.f_lasti)
                users = not file.startswith(foreign_files())
                if not (found or users or in_engine):
                    in_engine = file.startswith(self._engine) and in_backward()
                found = found or users
                if self._whole or users:
                    frames.append(Frame(file, frame.f_lineno, frame.f_code.co_name))
                if users and not self._whole:
                    break
            frame = frame.f_back
        return tuple(frames), place, in_engine

    def _phase(self, made: bool, place: Place | None) -> Phase:
        """What runs, where a module, an optimizer or the program itself asks. made:
        whether a node of autograd's was made since the request before."""
        if self._stepping:
            # A step may call what makes a forward pass.
            inner = made or len(self._modules) > self._outside
            return Phase.FORWARD if inner else Phase.OPTIMIZER
        if self._modules:
            return Phase.FORWARD
        # An operator made of several asks more than once for its one node.
        forward = made or self._node_place == place
        self._node_place = place if forward else None
        if in_backward():
            return Phase.BACKWARD
        return Phase.FORWARD if forward else Phase.OUTSIDE

    def _in_backward(self, torch: Any, frames: tuple[Frame, ...]) -> int:
        """The index of the stack of the running node: that of the forward pass which
        made it, if it is known."""
        node_of = getattr(torch._C, "_current_autograd_node", None)
        node = None if node_of is None else node_of()
        if node is None and not frames:
            return NO_STACK
        self._wait = True
        operator = "" if node is None else type(node).__name__
        made_by = NO_STACK if node is None else self._made_by(node._sequence_nr())
        if made_by != NO_STACK:
            frames = self.table[made_by]
        module = self.table.origin(made_by).module
        return self.table.intern(frames, Origin(module, operator, Phase.BACKWARD))

    def _made_by(self, sequence: int) -> int:
        after = range(sequence + 1, sequence + 1 + _REACH)
        found = (self._forward[each] for each in after if each in self._forward)
        return next(found, NO_STACK)

    def _operator(self, place: Place | None) -> str:
        if place is None:
            return ""
        if place not in self._operators:
            self._operators[place] = operator_at(*place)
        return self._operators[place]

    # -- modules and optimizers --------------------------------------------------

    def _called(self, call: Any, module: Any, args: Any, kwargs: Any) -> Any:
        outermost, name = not self._modules, self._name(module)
        new = outermost and name is None
        held: list[Any] = []
        if new:
            held = self._labels.meet(module)
            name = self._name(module)
        self._modules.append(name or "")
        try:
            return call(module, *args, **kwargs)
        finally:
            self._modules.pop()
            # Not before: the call may begin a step, to which the labels belong.
            self._labels.parameters(held)
            if outermost and not (in_backward() and not new):
                self._left(module, (args, kwargs))

    def _left(self, module: Any, arguments: object) -> None:
        """The outermost module was called, and not to make a call again, which is given
        activations."""
        if self._wait and not self._labels.has_optimizers:
            self._wait = False
            self._labels.gradients(parameters_in(module))
        self._labels.inputs(arguments)

    def _name(self, module: Any) -> str | None:
        ref, name = self._names.get(id(module), (None, None))
        return name if ref is not None and ref() is module else None

    def _name_module(self, name: str, part: Any) -> int:
        self._names[id(part)] = weakref.ref(part), name
        return self.table.intern((), Origin(name))

    def _begins(self, optimizer: Any, *_: object) -> None:
        self._labels.meet_optimizer(optimizer)
        self._labels.gradients(parameters_of(optimizer))
        self._stepping, self._outside = True, len(self._modules)
        self._sequence = sys.modules["torch"].autograd._get_sequence_nr()

    def _stepped(self, optimizer: Any, *_: object) -> None:
        self._stepping = False
        self._labels.state(optimizer)

    def _label_all(
        self, tensors: Sequence[Any], category: Category, stacks: Sequence[int]
    ) -> None:
        for tensor, stack in itertools.zip_longest(tensors, stacks, fillvalue=NO_STACK):
            self._label(tensor, category, stack)
