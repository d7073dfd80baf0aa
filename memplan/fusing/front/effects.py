"""What a run of a model does beside its results: such a model runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memplan.errors import InputError
from memplan.fusing.front.trace import has_hooks


class SideEffectsError(InputError):
    """The model writes to its inputs, buffers or attributes as it runs."""


def without_effects(
    model: Any, inputs: dict[str, Any], run: Callable[[dict[str, Any]], Any]
) -> Any:
    """What `run` gives on `inputs`, which are the caller's own copies.

    Raises SideEffectsError, with the model as it was before, if it changed itself, or
    its inputs. What it keeps at its first run, and only then, is no change.
    """
    versions = [each._version for each in inputs.values()]
    buffers = [each for each in model.buffers() if not each.is_inference()]
    kept = [(each, each._version, each.detach().clone()) for each in buffers]
    before = _attributes(model)
    result = run(inputs)
    written = [  # batch normalisation raises no versions
        each
        for each in kept
        if each[0]._version != each[1] or not _same(each[0], each[2])
    ]
    if written:
        for buffer, _, value in written:
            buffer.copy_(value)
        raise SideEffectsError("it writes to its buffers as it runs")
    if [each._version for each in inputs.values()] != versions:
        raise SideEffectsError("it writes to its inputs")
    if _differ(before):
        then = _attributes(model)
        result = run(inputs)
        if _differ(then):
            for attributes, values in before:
                attributes.clear()
                attributes.update(values)
            raise SideEffectsError("it changes its own attributes as it runs")
    return result


def _same(left: Any, right: Any) -> bool:
    import torch

    return bool(torch.equal(left.nan_to_num(), right.nan_to_num()))


def own(tensor: Any) -> Any:
    """A copy that lies in memory as the tensor does, where that can be written to."""
    return tensor.detach().clone()


def _attributes(model: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Of every module, its attributes and what they are; what hooks do is theirs."""
    return [
        (vars(module), dict(vars(module)))
        for module in model.modules()
        if not has_hooks(module)
    ]


def _differ(before: list[tuple[dict[str, Any], dict[str, Any]]]) -> bool:
    return any(
        now.keys() != then.keys()
        or any(now[name] is not value for name, value in then.items())
        for now, then in before
    )
