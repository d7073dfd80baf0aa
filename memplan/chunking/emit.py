"""A chunked model as a Python module of its own, with how to call it."""

from __future__ import annotations

from typing import Any

from memplan.errors import InputError
from memplan.graph.program import Meta, refs
from memplan.text import printable


def emitted(module: Any, name: str) -> str:
    """The Python of a model that `memplan.chunk` gave, which needs torch alone.

    name: of the module it is to be, as in "chunked". Raises InputError if not the whole
    model runs in chunks as one program.
    """
    whole = module.chunks.get("")
    if whole is None:
        parts = ", ".join(module.chunks)
        reason = module.memplan.left_alone.get("", "")
        why = f"only parts run in chunks ({parts})" if parts else "nothing does"
        raise InputError(
            "only a model that is exported whole and runs in chunks can be written as "
            f"one module, and here {why}" + (f": {reason}" if reason else "")
        )
    program = whole.program
    model = module.model
    own = {*dict(model.named_parameters(remove_duplicate=False))}
    own |= {*dict(model.named_buffers(remove_duplicate=False))}
    given = [f"{key}: {_told(program.metas[key])}" for key in program.inputs]
    results = len(list(refs(program.outputs)))
    lines = [
        "How to call it, with the model that it was made from:",
        "",
        f"    import {name}",
        "    weights = dict(model.named_parameters(remove_duplicate=False))",
        "    weights.update(model.named_buffers(remove_duplicate=False))",
    ]
    for place in program.constants.values():
        if place not in own:
            lines.append(f"    weights[{place!r}] = ...  # made in the model's code")
    lines += [
        "    with torch.no_grad():",
        f"        results = {name}.forward(inputs, weights)",
        "",
        "inputs: a list of the tensors among the model's arguments, in order:",
        *(f"    {each}" for each in given),
        f"results: a tuple of the {results} tensors that the model gives, in order,"
        if results != 1
        else "results: a tuple of the one tensor that the model gives.",
    ]
    if results != 1:
        lines.append("    however it nests them.")
    header = "\n".join(f"# {printable(line)}".rstrip() for line in lines)
    return f"{header}\n\n{whole.source}"


def _told(meta: Meta) -> str:
    size = "×".join(map(str, meta.shape)) or "a scalar"
    return f"{size}, {str(meta.dtype).removeprefix('torch.')}"
