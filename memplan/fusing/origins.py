"""Of which of a model's operators those are that rewrites make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from memplan.graph.build import Rewriter
from memplan.graph.infer import Inference
from memplan.graph.program import Argument, Op, Program, Ref


@dataclass
class Origins:
    """Names of a model's operators, by those of the operators that rewrites make.

    made: by an operator that a rewrite made, the one that it is a part of. merged: by
    one that is no more, the one that computes its result, too.
    """

    made: dict[str, str] = field(default_factory=dict)
    merged: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """The model's own operator of which this is a part; mostly itself."""
        return self.made.get(name, name)

    def merge(self, names: Iterable[str], made: str) -> None:
        """Note that the operator `made` stands for all of these; the first of them is
        what it is a part of."""
        head, *others = map(self.of, names)
        self.made[made] = head
        self.merged.update((each, head) for each in others if each != head)


class TracedRewriter(Rewriter):
    """A Rewriter that notes where what it adds comes from."""

    def __init__(
        self, old: Program, inference: Inference, origins: Origins | None
    ) -> None:
        super().__init__(old, inference)
        self.origins = Origins() if origins is None else origins

    def add(
        self, op: Op, name: str, target: Any, *args: Argument, **kwargs: Any
    ) -> Ref:
        """As a Rewriter does; what it adds is a part of `op`."""
        made = super().add(op, name, target, *args, **kwargs)
        self.origins.made[made.name] = self.origins.of(op.name)
        return made
