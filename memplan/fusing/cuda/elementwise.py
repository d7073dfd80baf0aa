"""Sequences without a pool: a loop over all elements, several at a time."""

from __future__ import annotations

from memplan.fusing.cuda.expressions import Group, operands, signature
from memplan.fusing.cuda.kernel import THREADS, TYPES, Form, Kernel

_WIDEST = 16  # bytes that a thread reads at once

_SOURCE = """\
#include "device.cuh"
#include "functions.cuh"

struct alignas({bytes}) Pack {{
    {type} values[{width}];
}};

{head} {{
    const int packs = images * channels * plane / {width};
    const Pack* from = reinterpret_cast<const Pack*>(in);
    Pack* to = reinterpret_cast<Pack*>(out);
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < packs;
         i += gridDim.x * THREADS) {{
        Pack pack = from[i];
        {before}
        UNROLL
        for (int e = 0; e < {width}; ++e) {{
            {each}
            float v = widen(pack.values[e]);
            {body}
            narrow(v, pack.values[e]);
        }}
        to[i] = pack;
    }}
}}
"""


def emit_elementwise(group: Group, form: Form) -> Kernel:
    """A kernel whose threads each take as many elements as 16 bytes hold.

    Fewer, if that many do not lie in one plane (channels last: at one point), or if
    tensors are not aligned. Neither height and width nor the number of channels are
    in the source. A launch takes at most 2**30 elements.
    """
    kinds = {kind for _, kind in group.kinds}
    width = _width(form, bool(kinds - {"tensor"}))
    before, each = _places(kinds, form.channels_last, f"i * {width}")
    reads = {}
    for number, kind in group.kinds:
        if kind == "tensor":
            pack = f"reinterpret_cast<const Pack*>(p{number})[i]"
            before.append(f"const Pack t{number} = {pack};")
            reads[number] = f"widen(t{number}.values[e])"
        else:
            reads[number] = f"fetch(p{number} + {'c' if kind == 'channel' else 'row'})"
    plane = form.height * form.width
    taken = operands([group], [plane])
    source = _SOURCE.format(
        bytes=width * TYPES[form.dtype][1],
        type=form.type,
        width=width,
        head=signature(form, taken),
        before="\n        ".join(before),
        each="\n            ".join(each),
        body="\n            ".join(group.statements(reads)),
    )
    return Kernel(source, (form.height, form.width), taken, plane, width * THREADS)


def _places(
    kinds: set[str], channels_last: bool, at: str
) -> tuple[list[str], list[str]]:
    """Statements before a pack and before each element: which channel `c` it is of,
    and which `row` of the tensors that have one value a channel of each image."""
    before, each = [], []
    if not channels_last:
        if kinds & {"channel", "image"}:
            before.append(f"const int row = {at} / plane;")
        if "channel" in kinds:
            before.append("const int c = row % channels;")
    elif kinds & {"channel", "image"}:
        before.append(f"const int first = {at} % channels;")
        each.append("const int c = first + e;")
        if "image" in kinds:
            before.append(f"const int image = {at} / channels / plane;")
            each.append("const int row = image * channels + c;")
    return before, each


def _width(form: Form, by_channel: bool) -> int:
    """Elements of a pack: a power of two that divides what lies together."""
    if not form.aligned:
        return 1
    together = form.height * form.width
    if form.channels_last and by_channel:
        together = form.channels
    elif not by_channel:
        together *= form.channels
    width = _WIDEST // TYPES[form.dtype][1]
    while together % width:
        width //= 2
    return width
