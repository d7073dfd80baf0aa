"""Launchers, which start a program several times and ask for no memory themselves.

What is to be recorded, or planned, is in the processes that they start. So the launcher
is told to start memplan in each, which then runs the script.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from memplan.recording.target import Target

# By the module that `-m` names: where its parser is, and the words that come before the
# options. What is after the script is the script's own, to each of them.
_PARSERS = {
    "torch.distributed.run": ("torch.distributed.run:get_args_parser", ()),
    "accelerate.commands.launch": (
        "accelerate.commands.launch:launch_command_parser",
        (),
    ),
    "accelerate.commands.accelerate_cli": (
        "accelerate.commands.launch:launch_command_parser",
        ("launch",),
    ),
}
_SCRIPTS = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
    "accelerate-launch": "accelerate.commands.launch",
}


def through_launcher(target: Target, words: Sequence[str]) -> Target | None:
    """`target`, if it is a launcher, told to start `memplan WORDS SCRIPT` in place of
    its script; None if it is none, or starts no script.

    words: memplan's command and options. The launcher reads its own options; those it
    does not understand it will refuse itself.
    """
    name = target.name if target.is_module else _SCRIPTS.get(Path(target.name).name)
    if name not in _PARSERS:
        return None
    place, before = _PARSERS[name]
    if target.arguments[: len(before)] != before:
        return None
    arguments = target.arguments[len(before) :]
    parsed = _parsed(place, arguments)
    script = getattr(parsed, "training_script", None)
    if parsed is None or not script or getattr(parsed, "no_python", False):
        return None
    own = tuple(getattr(parsed, "training_script_args", ()))
    options = arguments[: len(arguments) - len(own) - 1]
    is_module = bool(getattr(parsed, "module", False))
    command = (
        *(() if is_module else ("-m",)),
        *("memplan", *words),
        *(("-m",) if is_module else ()),
        *(script, *own),
    )
    return replace(target, arguments=(*before, *options, *command))


def _parsed(place: str, arguments: Sequence[str]) -> argparse.Namespace | None:
    """What the launcher's parser makes of them; None if it refuses, or is missing."""
    module, function = place.split(":")
    with contextlib.suppress(ImportError, AttributeError, SystemExit):
        parser: argparse.ArgumentParser = getattr(
            importlib.import_module(module), function
        )()
        with contextlib.redirect_stderr(None), contextlib.redirect_stdout(None):
            return parser.parse_args(list(arguments))
    return None
