"""Functions of one value that are written out, as torch's operator for them: nothing
between is made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch.nn import functional

from memplan.compiling.attention import FLOATS
from memplan.graph.build import Rewriter
from memplan.graph.infer import Inference
from memplan.graph.lower import without_dead
from memplan.graph.program import Argument, Op, Program, Ref, is_pointwise, mapped

aten = torch.ops.aten
LONGEST = 12  # operators in which a function is written
CLOSE = 1e-7  # relative; float32 rounds by 6e-8


def with_functions(program: Program, inference: Inference) -> Program:
    """The program with GELU, SiLU and others that are written in element-wise operators
    as one operator each, or three where the value is scaled.

    They are known by what they make of 2,408 numbers, infinite ones among them. Results
    differ by rounding. Loops stay as they are.
    """
    return _Rewriting(program, inference).all()


def _quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


@dataclass(frozen=True)
class _Known:
    """A function, and its operator; of `scale` times the value, divided by `scale`."""

    function: Callable[[torch.Tensor], torch.Tensor]
    target: Any
    approximate: str | None = None
    scale: float = 1.0


KNOWN = (
    _Known(_gelu_tanh, aten.gelu.default, "tanh"),
    _Known(functional.gelu, aten.gelu.default),
    _Known(functional.silu, aten.silu.default),
    _Known(_quick_gelu, aten.silu.default, None, 1.702),
    _Known(functional.hardswish, aten.hardswish.default),
    _Known(functional.hardsigmoid, aten.hardsigmoid.default),
    _Known(functional.mish, aten.mish.default),
    _Known(torch.sigmoid, aten.sigmoid.default),
)


FEW = (-1.5, 0.75, 2.5)  # numbers at which no two of them are the same


@cache
def _numbers() -> torch.Tensor:
    ordinary = torch.linspace(-12, 12, 2401, dtype=torch.float64)
    others = [-math.inf, -1e4, -100.0, 100.0, 1e4, math.inf, math.nan]
    return torch.cat([ordinary, torch.tensor(others, dtype=torch.float64)])


@cache
def _few() -> tuple[torch.Tensor, list[tuple[_Known, list[float]]]]:
    """A few numbers, and what each function makes of them."""
    numbers = torch.tensor(FEW, dtype=torch.float64)
    return numbers, [(each, each.function(numbers).tolist()) for each in KNOWN]


def _known(source: str, ops: list[Op]) -> _Known | None:
    """The function that operators compute of `source`."""
    numbers, wanted = _few()
    made = _made_of(source, ops, numbers).tolist()
    for known, values in wanted:
        if all(map(partial(math.isclose, rel_tol=2 * CLOSE), made, values)):
            expected = known.function(_numbers())
            found = _made_of(source, ops, _numbers())
            if torch.allclose(found, expected, CLOSE, 1e-9, equal_nan=True):
                return known
    return None


class _Rewriting:
    def __init__(self, program: Program, inference: Inference) -> None:
        self._old, self._to = program, Rewriter(program, inference)
        self._places = {
            op.name: place
            for place, op in enumerate(program.ops)
            if isinstance(op, Op) and _is_plain(op)
        }

    def all(self) -> Program:
        changed = False
        for step in self._old.ops:
            found = None
            if isinstance(step, Op) and step.name in self._places:
                found = self._found(step)
                if found is not None:
                    self._put(step, *found)
                    changed = True
            if found is None:
                self._to.keep(step)
        return without_dead(self._to.program) if changed else self._old

    def _found(self, last: Op) -> tuple[_Known, str] | None:
        """A function whose result `last` makes, and the value that it is of."""
        for source, ops in self._one_value(last):
            known = _known(source, ops) if len(ops) > 1 else None
            if known is not None:
                return known, source
        return None

    def _one_value(self, last: Op) -> Iterator[tuple[str, list[Op]]]:
        """Values of which alone `last` is made by operators whose results nothing else
        uses; the operators come in their order."""
        ops = [last]
        used = Counter(last.operands())
        while len(ops) <= LONGEST:
            if not all(self._like(name, last.name) for name in used):
                return
            if len(used) == 1:
                yield next(iter(used)), ops[::-1]
            latest = max(used, key=lambda name: self._places.get(name, -1))
            if latest not in self._places or used[latest] != self._to.uses[latest]:
                return
            op = self._old.ops[self._places[latest]]
            assert isinstance(op, Op)
            ops.append(op)
            del used[latest]
            used.update(op.operands())

    def _like(self, name: str, last: str) -> bool:
        one, other = self._old.metas[name], self._old.metas[last]
        return one == other and one.dtype in FLOATS

    def _put(self, last: Op, known: _Known, source: str) -> None:
        """The operator, its result under the name of the last one's."""
        kwargs: dict[str, Argument] = {}
        if known.approximate is not None:
            kwargs["approximate"] = known.approximate
        to, x = self._to, Ref(source)
        if known.scale == 1:
            to.end(last, known.target, x, **kwargs)
            return
        scaled = to.add(last, f"{last.name}_scaled", aten.mul.Tensor, x, known.scale)
        whole = to.add(last, f"{last.name}_whole", known.target, scaled, **kwargs)
        to.end(last, aten.div.Tensor, whole, known.scale)


def _is_plain(op: Op) -> bool:
    """Whether an element-wise operator asks for no other type and no random numbers."""
    options = [*op.args, *op.kwargs.values()]
    return (
        is_pointwise(op)
        and torch.Tag.nondeterministic_seeded not in op.target.tags  # type: ignore
        and all(isinstance(each, (Ref, int, float, str)) for each in options)
    )


def _made_of(source: str, ops: list[Op], numbers: torch.Tensor) -> torch.Tensor:
    """What operators make of numbers in place of `source`."""
    found = {source: numbers}
    for op in ops:
        args, kwargs = mapped(
            (op.args, op.kwargs),
            lambda at: found[at.name] if isinstance(at, Ref) else at,
        )
        found[op.name] = op.target(*args, **kwargs)
    return found[ops[-1].name]
