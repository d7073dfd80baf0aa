"""The command line. The one place where errors become exit codes."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from memplan.cli import show
from memplan.cli.group import LazyGroup
from memplan.cli.manners import VARIABLE
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
WIDEST = 100  # columns of help; as wide as the terminal, but no wider
_COMMANDS = {
    "record": "Run a program and write down what it allocates.",
    "fit": "Find the largest batch with which a program fits a device.",
    "recover": "Make the trace of a recording that was cut off.",
    "stats": "Say which lines make the peak, and whether memory leaks.",
    "check": "Fail where a recording needs more than a limit, or than an earlier one.",
    "diff": "Compare the peaks of two recordings, site by site.",
    "solve": "Plan the memory of a recorded program.",
    "report": "Make a page of a trace, and of a plan, for a browser.",
    "convert": "Write a trace in another form, for another program.",
    "verify": "Check a plan, against its trace if one is given.",
    "plot": "Draw a plan's packing, or a trace's memory over time.",
    "apply": "Run a program under a plan.",
    "chunk": "Run a model in chunks, so that its activations fit a budget.",
    "fuse": "Run a model depth-first, so that its inference takes less time.",
    "blocking": "Block the loops of convolutions for a memory hierarchy.",
    "completion": "Print what makes a shell complete commands and options.",
}


@click.group(
    cls=LazyGroup,
    commands_help=_COMMANDS,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": WIDEST,
    },
    epilog="Start with: memplan record train.py",
)
@click.version_option(__version__, message="memplan %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks of memplan's own errors.")
def cli(debug: bool) -> None:
    """Record what a PyTorch program allocates, plan that memory, apply the plan."""


def main() -> None:
    """Run the command line and exit with the code that fits."""
    debug = "--debug" in sys.argv
    open_missing_streams()
    try:
        if (asked := os.environ.get(VARIABLE)) is not None:
            from click.shell_completion import shell_complete

            sys.exit(shell_complete(cli, {}, "memplan", VARIABLE, asked))
        # Not cli.main: it would end with 1 when nobody reads what is printed.
        with cli.make_context("memplan", sys.argv[1:]) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        vars(error)["message"] = printable(error.message)  # it may quote an argument
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
        show.complaint(f"cannot write the output: {error.strerror}; send it elsewhere")
    except ReaderGoneError as error:
        code = error.exit_code
    except Exception as error:
        if debug:
            raise
        code = _told(error)
    sys.exit(code if isinstance(code, int) else 0)


def _told(error: Exception) -> int:
    """The exit code of `error`, said in one line."""
    if isinstance(error, MemplanError):
        show.complaint(str(error))
        return error.exit_code
    if isinstance(error, MemoryError):
        show.complaint(
            "too large for the memory there is; take a smaller file or problem"
        )
        return InputError.exit_code
    if isinstance(error, ImportError) and (error.name or "").startswith(_NATIVE):
        missing = f"memplan's compiled part is missing: {error}; install it again"
        show.complaint(missing)
        return EnvironmentUnfitError.exit_code
    show.complaint(
        f"internal error: {type(error).__name__}: {error}; "
        "please report it with the traceback that --debug shows"
    )
    return MemplanError.exit_code


def _flushed(code: int) -> int:
    """`code`, with all said; a reader that has gone changes nothing about it."""
    try:
        sys.stdout.flush()
    except OSError:
        return _silenced(code)
    return code


def _silenced(code: int) -> int:
    """`code`; nothing more is said, not even when Python ends."""
    silence(sys.stdout)
    return code
