"""The command line, run in this process."""

from tests.cli.conftest import memplan  # noqa: F401
