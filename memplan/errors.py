"""Errors and their exit codes.

MemplanError                      70  internal error, the base of all others
├── CheckFailed                    1  a check that you asked for failed
├── UsageError                     2  a wrong command line or wrong arguments
├── InputError                     3  a file that is missing, damaged or refused
│   └── FormatError                3  a file that does not have the expected format
├── NoPlanError                    4  no plan in the time given, or none at all
│   └── InfeasibleError            4  it is proved that there is no plan
├── EnvironmentUnfitError          5  no torch, wrong versions, no space on disk
├── RecordError                  125  the recorder failed, not the program
└── ReaderGoneError              141  the pipe at standard output is closed

Every message is one line: what is wrong, where, and what to do.
"""

from __future__ import annotations

import re

from memplan.text import printable

EXIT_INTERRUPTED = 130


class MemplanError(Exception):
    """Base of every error memplan raises on purpose.

    shell: the message for the command line, where it names options of a command and
    not, as the other one, parameters.
    """

    exit_code = 70

    def __init__(self, *message: object, shell: str = "") -> None:
        super().__init__(*message)
        self._shell = shell

    @property
    def shell(self) -> str:
        """The message as the command line shows it."""
        return printable(self._shell) or str(self)

    def __str__(self) -> str:
        return printable(super().__str__())


class CheckFailed(MemplanError):  # noqa: N818 - reads as the sentence it is
    """A verification or a gate did not pass."""

    exit_code = 1


class UsageError(MemplanError):
    """The command line or the arguments contradict themselves."""

    exit_code = 2


class InputError(MemplanError):
    """An input file is missing, unreadable, damaged or refused."""

    exit_code = 3


class FormatError(InputError):
    """A file's contents violate its format."""

    def __init__(self, path: object, problem: str, remedy: str = "") -> None:
        self.path, self.problem, self.remedy = path, problem, remedy
        super().__init__(f"{path}: {problem}" + (f"; {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[type[FormatError], tuple[object, str, str]]:
        """Workers send it to the process that prints it."""
        return type(self), (self.path, self.problem, self.remedy)


class NoPlanError(MemplanError):
    """No plan exists, or none was found in the time given.

    peak: bytes of the best plan that was too large; None if there is none.
    lower_bound: bytes that every plan needs; None if unknown.
    """

    exit_code = 4

    def __init__(
        self,
        message: str,
        peak: int | None = None,
        lower_bound: int | None = None,
        shell: str = "",
    ) -> None:
        self.peak, self.lower_bound = peak, lower_bound
        super().__init__(message, shell=shell)


class InfeasibleError(NoPlanError):
    """It is proved that no plan exists: the buffers cannot fit."""


class EnvironmentUnfitError(MemplanError):
    """The machine lacks something: torch, a known ABI, space on disk."""

    exit_code = 5


class RecordError(MemplanError):
    """The recorder itself failed; the recorded program did not."""

    exit_code = 125


class ReaderGoneError(MemplanError):
    """Standard output is a pipe without a reader. Prints nothing, as with SIGPIPE."""

    exit_code = 141


def expected(what: str, got: object) -> TypeError:
    """The error for an argument that is not `what`."""
    return TypeError(f"expected {what}, not {type(got).__name__}")


def as_options(text: str) -> str:
    """`text` with parameters as the command line has them: device="cpu" as --device cpu
    and no_leak=True as --no-leak."""

    def option(match: re.Match[str]) -> str:
        name = "--" + match[1].replace("_", "-")
        return name if match[2] == "True" else f"{name} {match[2].strip(chr(34))}"

    return re.sub(r'\b([a-z_]+)=(True|"[^"]*"|\d+)', option, text)
