"""A model and its inputs, made by functions in the user's file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from memplan.cli import show
from memplan.errors import InputError, UsageError
from memplan.factory import UserFile, parse_spec


def user_model(
    torch: Any, model: str, inputs: str | None, done: str
) -> tuple[Any, Any]:
    """The model in eval mode, and its inputs: a tuple or list of arguments, a mapping
    of keyword arguments, or one tensor.

    model: FILE.py:FACTORY; inputs: FILE.py:FUNCTION, or None if the factory returns
    both. done: the verb's participle, for a message. Raises UsageError and InputError.
    """
    file, name = parse_spec(model)
    other = None if inputs is None else parse_spec(inputs)
    torch.manual_seed(0)
    user = UserFile(file)
    made = user.call(name)
    pair = isinstance(made, tuple) and len(made) == 2
    module, given = made if pair else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"{model} must return a model, or a model and its inputs, not "
            f"{type(made).__name__}"
        )
    if other is not None:
        if other[0].resolve() != file.resolve():
            user = UserFile(other[0])
        given = user.call(other[1])
    elif not pair:
        raise UsageError(
            f"{model} returns a model without inputs; name a function that makes them "
            "with --inputs"
        )
    if not isinstance(given, torch.Tensor | Mapping | tuple | list):
        raise InputError(
            f"{inputs or model}: inputs are a tuple of arguments, a mapping of keyword "
            f"arguments or one tensor, not {type(given).__name__}"
        )
    if module.training:
        module.eval()
        show.note(f"the model was in training mode; it is {done} in eval mode")
    return module, given


@contextlib.contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Redirect what the user's code prints; standard output is for results."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
