"""A model and its inputs, made by functions in the user's file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from memplan.cli import arguments, show
from memplan.cli.progress import working
from memplan.errors import InputError, UsageError
from memplan.factory import UserFile, parse_spec
from memplan.recording.shim import require_torch

Made = tuple[Any, Any, Callable[[str], None]]


@dataclass(frozen=True)
class UserModel:
    """model: FILE.py:FACTORY; inputs: FILE.py:FUNCTION, or None if the factory returns
    both. threads: that torch uses; None for its own number."""

    model: str
    inputs: str | None
    threads: int | None

    @contextlib.contextmanager
    def made(
        self, verb: str, doing: str, done: str, train: bool = False
    ) -> Iterator[Made]:
        """The model in eval mode, or to `train`, its inputs (a tuple or list of
        arguments, a mapping of keyword arguments, or one tensor), and what to call with
        each stage.

        Until it ends, what the user's code prints goes to standard error, and Ctrl-C
        prints that there is no result. verb, doing, done: its forms, for messages.
        Raises UsageError and InputError.
        """
        torch = require_torch(f"{doing} a model")
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        with contextlib.redirect_stdout(sys.stderr), working(verb) as progress:
            module, given = self._called(torch)
            if train:
                module.train()
            elif module.training:
                module.eval()
                show.note(f"the model was in training mode; it is {done} in eval mode")
            yield module, given, progress

    def _called(self, torch: Any) -> tuple[Any, Any]:
        file, name = parse_spec(self.model)
        other = None if self.inputs is None else parse_spec(self.inputs)
        torch.manual_seed(0)
        user = UserFile(file)
        made = user.call(name)
        pair = isinstance(made, tuple) and len(made) == 2
        module, given = made if pair else (made, None)
        if not isinstance(module, torch.nn.Module):
            raise InputError(
                f"{self.model} must return a model, or a model and its inputs, not "
                f"{type(made).__name__}"
            )
        if other is not None:
            if other[0].resolve() != file.resolve():
                user = UserFile(other[0])
            given = user.call(other[1])
        elif not pair:
            raise UsageError(
                f"{self.model} returns a model without inputs; name a function that "
                "makes them with --inputs"
            )
        if not isinstance(given, torch.Tensor | Mapping | tuple | list):
            kind = type(given).__name__
            raise InputError(
                f"{self.inputs or self.model}: inputs are a tuple of arguments, a "
                f"mapping of keyword arguments or one tensor, not {kind}"
            )
        return module, given


option = arguments.gathered(
    "model",
    UserModel,
    click.argument("model", metavar="FILE.py:FACTORY"),
    click.option(
        "--inputs",
        metavar="FILE.py:FUNCTION",
        help="Function that returns the inputs, if FACTORY returns a model alone.",
    ),
)
