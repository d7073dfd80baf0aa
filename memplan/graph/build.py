"""Programs written anew, operator by operator, with shapes and aliases inferred."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.graph.infer import Inference
from memplan.graph.program import Argument, Op, Program, Ref, Step, refs

if TYPE_CHECKING:
    from memplan.graph.program import Meta


class Builder:
    """Appends operators to a program that has a source's inputs and constants."""

    def __init__(self, source: Program, inference: Inference) -> None:
        given = (*source.inputs, *source.constants)
        metas = {name: source.metas[name] for name in given}
        self.program = replace(
            source,
            ops=[],
            constants=dict(source.constants),
            metas=metas,
            roots={name: name for name in given},
            moving={},
        )
        self._inference = inference

    def add(
        self, op: Op, name: str, target: Any, *args: Argument, **kwargs: Any
    ) -> Ref:
        """Append `target` on these arguments, under `name` or one like it that is free;
        `op` tells where it comes from."""
        taken = self.program.metas
        free = name
        number = 0
        while free in taken:
            number += 1
            free = f"{name}_{number}"
        return self.append(Op(free, target, args, kwargs, op.line))

    def append(self, op: Op) -> Ref:
        """Append an operator under its own name."""
        self._inference.add(self.program, op)
        self.program.ops.append(op)
        return Ref(op.name)

    def put(self, op: Op, meta: Meta) -> Ref:
        """Append `op`, whose result has memory of its own, and this meta."""
        self.program.metas[op.name] = meta
        self.program.roots[op.name] = op.name
        self.program.ops.append(op)
        return Ref(op.name)

    def meta(self, ref: Ref) -> Any:
        return self.program.metas[ref.name]


class Rewriter(Builder):
    """Writes a program anew, whose values keep their names.

    old: the program. program: what is written so far; it has shapes and aliases of
    values that are to come, too, as they are in the old one. uses: how often each value
    is taken by a step or is a result.
    """

    def __init__(self, old: Program, inference: Inference) -> None:
        super().__init__(old, inference)
        self.old = old
        self.program.metas.update(old.metas)
        self.program.roots.update(old.roots)
        self.program.modules = dict(old.modules)
        self.program.moving = old.moving
        taken = [name for step in old.ops for name in step.operands()]
        self.uses = Counter([*taken, *refs(old.outputs)])

    def keep(self, step: Step) -> None:
        """Append a step that is as it was, and takes what lies as it did."""
        self.program.ops.append(step)

    def add(
        self, op: Op, name: str, target: Any, *args: Argument, **kwargs: Any
    ) -> Ref:
        """As a Builder does; it is of the module that `op` is of."""
        made = super().add(op, name, target, *args, **kwargs)
        if op.name in self.old.modules:
            self.program.modules[made.name] = self.old.modules[op.name]
        return made

    def end(self, op: Op, target: Any, *args: Argument, **kwargs: Any) -> Ref:
        """Append what makes the result of `op`, under its name."""
        return self.append(Op(op.name, target, args, kwargs, op.line))
