"""Arguments that several commands share."""

from __future__ import annotations

import contextlib
import functools
import glob
import inspect
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import click
from click.core import ParameterSource

from memplan.cli import show
from memplan.errors import InputError, UsageError
from memplan.files import STDOUT
from memplan.formats.sniff import Input, Kind, opened

if TYPE_CHECKING:
    from memplan.core.plan import Plan
    from memplan.core.problem import Problem
    from memplan.recording.target import Target
    from memplan.trace.trace import Trace

F = TypeVar("F", bound=Callable[..., Any])
_WORDS = "memplan.words"  # in a context: the options of a command, as they were given


class ProgramCommand(click.Command):
    """A command that runs a program; all arguments after its name are the program's.

    The name is the first positional argument after the command's own (the plan, for
    `apply`), or the word after -m.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS], args = self._separated(args)
        return super().parse_args(ctx, args)

    def _separated(self, args: list[str]) -> tuple[list[str], list[str]]:
        """memplan's own options in `args`, and all of them with `--` after its own."""
        with_value = {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for name in param.opts
        }
        positionals = sum(isinstance(p, click.Argument) for p in self.params) - 1
        own: list[str] = []
        at = 0
        while at < len(args) and (word := args[at]) != "--":
            end = at + 1 + (word in with_value)
            if word.startswith("-m"):
                return own, [*args[:end], "--", *args[end:]]
            if word.startswith("-") and word != "-":
                own += args[at:end]
                at = end
            elif positionals:
                positionals, at = positionals - 1, at + 1
            else:
                return own, [*args[:at], "--", *args[at:]]
        return own, args


def gathered(
    name: str, make: Callable[..., Any], *decorators: Callable[[Any], Any]
) -> Callable[[F], F]:
    """Several options as one parameter: what `make` returns for those that it names.

    The command gets the others, and those of these that it names as well.
    """
    taken = inspect.signature(make).parameters

    def decorate(function: F) -> F:
        wanted = inspect.signature(function).parameters
        last = not hasattr(function, "__wrapped__")

        @functools.wraps(function)
        def run(**values: Any) -> Any:
            own = {key: value for key, value in values.items() if key in taken}
            values[name] = make(**own)
            if last:
                values = {key: each for key, each in values.items() if key in wanted}
            return function(**values)

        return together(*decorators)(cast(F, run))

    return decorate


def together(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options, or arguments, as one."""

    def decorate(function: F) -> F:
        for each in reversed(decorators):
            function = each(function)
        return function

    return decorate


# `-m MODULE | SCRIPT`, and its arguments, unchanged.
program = together(
    click.option(
        "-m", "module", metavar="MODULE", help="Module to run, as with python -m."
    ),
    click.argument("script", nargs=-1, type=click.UNPROCESSED),
)


def target(module: str | None, script: tuple[str, ...]) -> Target:
    """The program given to `program`. Raises UsageError if there is none."""
    from memplan.recording.target import Target

    if module is None and not script:
        raise UsageError("name a script to run, or a module with -m")
    if module is None:
        found = Target(script[0], script[1:])
    else:
        found = Target(module, script, is_module=True)
    found.check()
    return found


def run_program(
    target: Target, start: Callable[[], Callable[[], int]], lost: str, plan: str = ""
) -> NoReturn:
    """Run the program, and exit with its code or else with that of a failure.

    start: called before; what it returns is called when the program ends, once and in
    this process only. Of a launcher such as torchrun each child does this instead, with
    the same options and `plan`. lost: a note for a program that becomes another one.
    """
    from memplan.recording.target import leaving_concluded, run, through_launcher

    context = click.get_current_context()
    quiet = ["--quiet"] * show.is_hushed()
    words = [str(context.info_name), *context.meta[_WORDS], *quiet]
    launcher = through_launcher(target, [*words, plan] if plan else words)
    if launcher is not None:
        sys.exit(run(launcher))
    process = os.getpid()
    conclude = functools.cache(start())

    def left(goes_on: bool) -> None:
        conclude()
        if goes_on:
            show.note(lost)

    try:
        with leaving_concluded(left):
            code = run(target)
    finally:
        # A forked child may get here, too: its parent concludes.
        failed = conclude() if os.getpid() == process else 0
    sys.exit(code or failed)


device = click.option(
    "--device",
    type=click.IntRange(min=0),
    metavar="N",
    help="GPU index, if the snapshot covers several.",
)


def ray(what: str) -> Callable[[F], F]:
    """`--ray ADDRESS`, of a cluster to `what` on."""
    return click.option(
        "--ray",
        metavar="ADDRESS",
        help=f'Ray cluster to {what} on: "auto" or host:port.',
    )


def given(name: str) -> bool:
    """Whether the user gave this option of the running command."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not ParameterSource.DEFAULT


def refuse(options: dict[str, str], why: str) -> None:
    """Raise UsageError if the user gave one of `options` (name: flag), which have no
    effect here."""
    for name, flag in options.items():
        if given(name):
            raise UsageError(f"{flag} is {why}")


rows = click.option(
    "-n",
    "most",
    type=click.IntRange(min=1),
    default=10,
    metavar="N",
    help="Number of rows.",
)

moment = click.option(
    "--at",
    default="peak",
    metavar="peak|oom|end|SECONDS|STEP",
    help="Moment to show: the peak, the first failed request, the last whole step's "
    "end, a time such as 1.5s, or a step's number for its largest moment.",
)


def by(kinds: Sequence[str]) -> Callable[[F], F]:
    """`--by KIND`, as `kind`: one of `kinds`, by default "line"."""
    return click.option(
        "--by",
        "kind",
        type=click.Choice(kinds),
        default="line",
        help="Property to group buffers by.",
    )


def read_input(
    source: Input, *columns: str, device: int | None = None
) -> Trace | Problem:
    """A trace, or a bare problem, as a MiniMalloc CSV file holds.

    Reads only the columns that planning needs, and `columns`; of a snapshot, the
    history of `device`.
    """
    from memplan.trace.read import read_input
    from memplan.trace.streams import NEEDED

    return read_input(source, {*NEEDED, *columns}, device)


def read_plan(source: Input) -> Plan:
    """The plan in a file."""
    from memplan.core.planfile import read_plan

    return read_plan(source)


def stem(path: Path, *more: str) -> str:
    """A trace's name without the suffix that says its form; more: other suffixes."""
    name = path.name
    for suffix in (".parquet", ".json.gz", ".json", *more):
        name = name.removesuffix(suffix)
    return name


def existing(name: str, **options: Any) -> Callable[[F], F]:
    """An input file; its reader checks that it exists and what it is."""
    kind = click.Path(readable=False, path_type=Path)  # click would end with 2
    return click.argument(name, type=kind, **options)


class OutputFile(click.Path):
    """A file to write; `-` is STDOUT, and then all else goes to standard error.

    refusal: why STDOUT is not possible, if so. Raises UsageError then, and for an empty
    name.
    """

    def __init__(self, refusal: str = "") -> None:
        super().__init__(readable=False, path_type=Path)
        self._refusal = refusal

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        if not os.fspath(value):
            raise UsageError("the output's name is empty; name a file")
        if os.fspath(value) not in ("-", str(STDOUT)):
            return super().convert(value, param, ctx)
        if self._refusal:
            raise UsageError(f"{self._refusal}; name a file instead of {value}")
        if ctx is not None:
            ctx.with_resource(contextlib.redirect_stdout(sys.stderr))
        return STDOUT


def output(
    help_text: str, refusal: str = "", metavar: str | None = None
) -> Callable[[F], F]:
    """`-o FILE`, as `output`: a path, STDOUT for -, or None; refusal: of OutputFile."""
    kind = OutputFile(refusal)
    return click.option("-o", "--output", type=kind, metavar=metavar, help=help_text)


def force(what: str) -> Callable[[F], F]:
    """`--force`, to replace `what`, such as "the plan if it exists"."""
    return click.option("--force", is_flag=True, help=f"Replace {what}.")


def step(help_text: str) -> Callable[[F], F]:
    """`--step N|hot|all`, by default the hot one."""
    return click.option(
        "--step",
        default="hot",
        metavar="N|hot|all",
        help=help_text,
    )


json_ = click.option("--json", "json_", is_flag=True, help="Print the result as JSON.")


def threads(help_text: str, metavar: str | None = None) -> Callable[[F], F]:
    """`--threads`, 1 or more; None by default."""
    kind = click.IntRange(min=1)
    return click.option("--threads", type=kind, metavar=metavar, help=help_text)


THE_PROGRAMS = "standard output is the program's own"
BY_SUFFIX = "the format follows from the file's suffix"


def trace_or_plan(source: Input, device: int | None = None) -> Trace | Plan:
    """A trace, a snapshot's trace, or a plan; device: of a snapshot, which GPU's.

    Raises UsageError for a bare problem, and a device where there is none.
    """
    with opened(source) as file:
        if device is not None and file.kind is Kind.PLAN:
            raise UsageError(f"--device is for snapshots; {file.path} is a plan")
        from memplan.trace.read import read_trace_or_plan

        return read_trace_or_plan(file, device)


def expanded(names: Sequence[str]) -> list[Path]:
    """The files that `names` stand for, patterns included. Raises InputError."""
    found: list[Path] = []
    for name in names:
        if Path(name).exists() or not glob.has_magic(name):
            found.append(Path(name))
            continue
        matches = sorted(glob.glob(name, recursive=True))
        if not matches:
            raise InputError(f"{name}: no file is named like this")
        found += map(Path, matches)
    return list(dict.fromkeys(found))


class Number(click.FloatRange):
    """A number from 0 up, or above 0; unlike click's own range, never NaN."""

    def __init__(self, above: bool = False) -> None:
        super().__init__(min=0, min_open=above)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


def percent(value: str | float) -> float:
    """A share from 0 up, of 2% or 0.02. Raises UsageError."""
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1000:
        raise UsageError(f"{value!r} is no share; write 2% or 0.02")
    return share
