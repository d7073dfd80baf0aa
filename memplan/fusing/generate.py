"""C++ source of stacks; the code that all share is in `kernels/`.

Generated are the element-wise operations of each distinct step, as one struct, the
numbers of its pool, and a table of steps a sequence. Sizes are not in it, so that a
stack is compiled once for all planes. Steps that do the same share their code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from memplan.errors import UsageError
from memplan.fusing.collapse import Sequence, Stack, Step
from memplan.fusing.operators import Operation, Pool

LAYOUTS = ("channels_first", "channels_last")
DTYPES = ("float32", "bfloat16")

_MEMBERS = {  # of a kind of operand: its type, and how it is found
    "channel": ("Vec", "of_channel"),
    "image": ("Vec", "of_image"),
    "tensor": ("Beside", "Beside"),
}


UNROLLED = (3, 5, 7)  # taps across of depthwise convolutions that have their own code


def is_depthwise(stack: Stack) -> bool:
    """Whether it is a depthwise convolution between element-wise operations."""
    return any(each.pool and each.pool.mode == "depthwise" for each in stack.steps)


def kernel_name(stack: Stack, dtype: str, layout: str) -> str:
    """The symbol of a stack's kernel, the same for stacks of the same signature."""
    digest = hashlib.sha256(stack.signature.encode()).hexdigest()
    return f"memplan_stack_{dtype}_{layout}_{digest[:16]}"


def source_of(stacks: Iterable[Stack], dtype: str, layout: str) -> str:
    """One translation unit with a kernel for each distinct stack, see `kernel_name`.

    dtype is one of DTYPES, layout one of LAYOUTS. Every kernel is a C function
    `void(const void* call, int threads)`, its call a `memplan::Call` of stack_call.h.
    """
    unit = _Unit()
    named = {kernel_name(s, dtype, layout): s for s in stacks}
    for name, stack in named.items():
        unit.add(name, stack)
    depthwise = any(map(is_depthwise, named.values()))
    if depthwise and layout != "channels_last":
        raise UsageError("depthwise convolutions take channels last")
    return "\n".join(
        [
            f"#define MEMPLAN_CHANNELS_LAST {int(layout == 'channels_last')}",
            f"#define MEMPLAN_BFLOAT16 {int(dtype == 'bfloat16')}",
            '#include "stack_sequences.h"',
            '#include "stack_map.h"',
            *(['#include "depthwise_run.h"'] if depthwise else []),
            "namespace memplan {",
            "namespace {",
            *unit.inner,
            "}  // namespace",
            "}  // namespace memplan",
            *unit.outer,
            "",
        ]
    )


class _Unit:
    """A translation unit under construction."""

    def __init__(self) -> None:
        self.inner: list[str] = []
        self.outer: list[str] = []
        self._names: dict[str, str] = {}  # of what was written, by its text
        self._count = 0

    def add(self, name: str, stack: Stack) -> None:
        """Add a kernel and the parts that it needs."""
        if not any(sequence.pools for sequence in stack.sequences):
            body = f"memplan::run_map<memplan::{self._operations(stack.operations)}>"
            call = f"{body}(*(const memplan::Call*)call, threads);"
        elif is_depthwise(stack):
            call = self._depthwise(stack)
        else:
            table = self._sequences(stack)
            call = (
                f"memplan::run_sequences(*(const memplan::Call*)call, "
                f"memplan::{table}, {len(stack.sequences)}, threads);"
            )
        self.outer += [
            'extern "C" __attribute__((visibility("default"))) void',
            f"{name}(const void* call, int threads) {{",
            f"  {call}",
            "}",
        ]

    def _depthwise(self, stack: Stack) -> str:
        """Its numbers are arguments, so that convolutions of all sizes between the same
        operations share their code; those as wide as most are have code of their own.
        """
        (step,) = stack.steps
        assert step.pool is not None
        parts = [
            f"memplan::{self._operations(each)}" for each in (step.before, step.after)
        ]
        across = step.pool.kernel[1]
        numbers = [*_axes(step.pool), *map(str, step.pool.behind)]
        known = across if across in UNROLLED else 0
        return (
            f"memplan::run_depthwise<{', '.join(parts)}, {known}>("
            f"*(const memplan::Call*)call, {{{', '.join(numbers)}}}, "
            f"{_operands(step.before)}, threads);"
        )

    def _sequences(self, stack: Stack) -> str:
        rows, operand = [], 0
        for sequence in stack.sequences:
            first = sequence.steps[0]
            steps = self._steps(sequence, operand + _operands(first.before))
            load = f"load_rows<{self._operations(first.before)}>"
            rows.append(f"{{{load}, {operand}, {steps}, {len(sequence.steps)}}}")
            operand += sum(_operands(step.operations) for step in sequence.steps)
        return self._constant("Sequence", "[]", f"{{{', '.join(rows)}}}")

    def _steps(self, sequence: Sequence, operand: int) -> str:
        rows = []
        for step in sequence.steps:
            rows.append(f"step_of<{self._kind(step)}>({operand})")
            operand += _operands(step.after)
        return self._constant("Step", "[]", f"{{{', '.join(rows)}}}")

    def _kind(self, step: Step) -> str:
        assert step.pool is not None
        shape = self._constant("Shape", "", _shape(step.pool))
        return f"{shape}, {self._operations(step.after)}"

    def _constant(self, kind: str, array: str, value: str) -> str:
        return self._once(f"constexpr {kind} NAME{array} = {value};")

    def _operations(self, operations: tuple[Operation, ...]) -> str:
        return self._once(_struct(operations))

    def _once(self, text: str) -> str:
        """The name under which a text is declared; NAME in it stands for that."""
        if text not in self._names:
            self._names[text] = name = f"Part{self._count}"
            self._count += 1
            self.inner.append(text.replace("NAME", name))
        return self._names[text]


def _operands(operations: Iterable[Operation]) -> int:
    return sum(len(operation.operands) for operation in operations)


def _axes(pool: Pool) -> tuple[str, str]:
    """Numbers down and across, as Axis of stack_pools.h."""
    down, across = (
        "{"
        + f"{pool.kernel[axis]}, {pool.stride[axis]}, "
        + f"{pool.padding[axis]}, {pool.dilation[axis]}"
        + "}"
        for axis in (0, 1)
    )
    return down, across


def _shape(pool: Pool) -> str:
    down, across = _axes(pool)
    flags = (pool.mode == "max", pool.ceil, pool.count_padding)
    most, ceil, counted = (str(flag).lower() for flag in flags)
    return f"{{{most}, {down}, {across}, {ceil}, {counted}, {pool.divisor or 0}}}"


def _struct(operations: tuple[Operation, ...]) -> str:
    """A struct that holds operands at a spot, and applies operations to values."""
    members, starts, lines, bounds = [], [], [], []
    index = 0
    for operation in operations:
        names: list[str] = []
        for kind in operation.operands:
            type_, found = _MEMBERS[kind]
            at = ".at(point, lanes)" if kind == "tensor" else ""
            names.append(f"m{index}{at}")
            members.append(f"  {type_} m{index};")
            starts.append(f"m{index}({found}(call.operands[first + {index}], spot))")
            index += 1
        most = operation.bound(names)
        lines.append(f"    x = {operation.code('x', names)};")
        if most != "most":
            bounds.append(f"    most = {most};")
            bounds.append("    worst = larger_or_nan(worst, most);")
    start = f" : {', '.join(starts)}" if starts else ""
    unused = "[[maybe_unused]] "
    return "\n".join(
        [
            "struct NAME {",
            *members,
            f"  MEMPLAN_INLINE NAME({unused}const Call& call, {unused}int first,",
            f"                      {unused}Spot spot){start} {{}}",
            f"  MEMPLAN_INLINE Vec operator()(Vec x, {unused}int64_t point,",
            f"                                {unused}int lanes) const {{",
            *lines,
            "    return x;",
            "  }",
            f"  MEMPLAN_INLINE void bound({unused}Vec& most,",
            f"                            {unused}Vec& worst) const {{",
            *bounds,
            "  }",
            "};",
        ]
    )
