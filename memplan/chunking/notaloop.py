"""The one way in which making a loop fails."""

from __future__ import annotations


class NotALoopError(Exception):
    """The operators do not form a loop: shapes or dependencies are against it."""
