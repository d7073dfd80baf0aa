"""The command line. The one place where errors become exit codes."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from memplan.cli import show
from memplan.cli.group import VARIABLE, LazyGroup
from memplan.errors import (
    EXIT_INTERRUPTED,
    EnvironmentUnfitError,
    InputError,
    MemplanError,
    ReaderGoneError,
)
from memplan.streams import open_missing_streams, silence
from memplan.text import printable
from memplan.version import __version__

_NATIVE = "memplan.native"
WIDEST = 100  # columns of help
COMMANDS = {
    "record": "Run a program and record its memory.",
    "stats": "Show which lines make the peak, and leaks.",
    "check": "Fail if a recording exceeds a limit or an earlier recording.",
    "diff": "Compare the peaks of two recordings, line by line.",
    "fit": "Find the largest batch that fits a device.",
    "report": "Write an HTML report of a trace or a plan.",
    "recover": "Rebuild the trace of a killed recording.",
    "convert": "Convert a trace for another program.",
    "solve": "Plan the memory of a recorded program.",
    "verify": "Check a plan, also against its trace.",
    "plot": "Draw a plan's layout or a trace's memory over time.",
    "apply": "Run a program under a plan.",
    "chunk": "Run a model in chunks to fit its activations in a budget.",
    "fuse": "Speed up a model's inference by running it depth-first.",
    "compile": "Run a model's inference in one planned arena.",
    "blocking": "Block the loops of convolutions for a memory hierarchy.",
    "completion": "Print a script that completes commands in a shell.",
}


@click.group(
    cls=LazyGroup,
    commands_help=COMMANDS,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": WIDEST,
        "show_default": True,
    },
    epilog="Start with: memplan record train.py",
)
@click.version_option(__version__, message="memplan %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks of internal errors.")
def cli(debug: bool) -> None:
    """Record what a PyTorch program allocates, plan that memory, apply the plan."""


def main() -> None:
    """Run the command line and exit with its exit code."""
    debug = "--debug" in sys.argv
    open_missing_streams()
    try:
        if (asked := os.environ.get(VARIABLE)) is not None:
            from click.shell_completion import shell_complete

            sys.exit(shell_complete(cli, {}, "memplan", VARIABLE, asked))
        # Not cli.main, which exits 1 on a closed pipe.
        with cli.make_context("memplan", sys.argv[1:]) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        vars(error)["message"] = printable(error.message)  # may quote an argument
        with contextlib.suppress(OSError):
            error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except SystemExit as stop:  # a command's own verdict, or the program's
        code = stop.code
        code = _flushed(code if isinstance(code, int) else 0)
    except BrokenPipeError:
        code = _silenced(0)
    except OSError as error:
        code = _silenced(EnvironmentUnfitError.exit_code)
        show.complaint(f"cannot write the output: {error.strerror}; redirect it")
    except ReaderGoneError as error:
        code = error.exit_code
    except Exception as error:
        if debug:
            raise
        # Python up to 3.11 wraps what is raised while a class is being made.
        stopped = isinstance(error.__cause__, KeyboardInterrupt)
        code = EXIT_INTERRUPTED if stopped else _explained(error)
    sys.exit(code if isinstance(code, int) else 0)


def _explained(error: Exception) -> int:
    """Print `error` in one line; its exit code."""
    if isinstance(error, MemplanError):
        show.complaint(error.shell)
        return error.exit_code
    if isinstance(error, MemoryError):
        show.complaint("not enough memory for this file or problem; use a smaller one")
        return InputError.exit_code
    if isinstance(error, ImportError) and (error.name or "").startswith(_NATIVE):
        show.complaint(f"cannot load memplan's native code: {error}; reinstall memplan")
        return EnvironmentUnfitError.exit_code
    show.complaint(
        f"internal error: {type(error).__name__}: {error}; "
        "please report it with the traceback that --debug shows"
    )
    return MemplanError.exit_code


def _flushed(code: int) -> int:
    """`code`, after flushing; a closed pipe does not change it."""
    try:
        sys.stdout.flush()
    except OSError:
        return _silenced(code)
    return code


def _silenced(code: int) -> int:
    """`code`; nothing more is printed, not even when Python exits."""
    silence(sys.stdout)
    return code
