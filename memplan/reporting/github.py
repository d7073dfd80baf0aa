"""A verdict as GitHub's runners show it: an annotation, and a summary of the job."""

from __future__ import annotations

import os
from pathlib import Path

from memplan.reporting.check import Verdict, described
from memplan.units import format_bytes


def annotation(verdict: Verdict) -> str:
    """The workflow command that marks the line in the changed files; "" if passed."""
    if verdict.passed:
        return ""
    properties = "title=memplan check"
    site = verdict.site
    if site is not None and site.file:
        file = _property(_in_workspace(site.file))
        properties = f"file={file},line={max(site.line, 1)},{properties}"
    return f"::error {properties}::{_data(verdict.message)}"


def summary(verdict: Verdict, name: str) -> str:
    """Markdown for the job's summary. name: of the trace or plan."""
    outcome = "passed" if verdict.passed else "**failed**"
    limit = "" if verdict.limit is None else format_bytes(verdict.limit)
    site = "" if verdict.site is None else described(verdict.site)
    cells = [_cell(name), outcome, format_bytes(verdict.value), limit, _cell(site)]
    row = " | ".join(cells)
    return (
        "### memplan check\n\n"
        "| file | outcome | value | limit | site |\n|---|---|---:|---:|---|\n"
        f"| {row} |\n\n{_cell(verdict.message)}\n\n"
    )


def _in_workspace(file: str) -> str:
    """`file` as the repository names it, where it lies within."""
    root = Path(os.environ.get("GITHUB_WORKSPACE") or os.getcwd())
    path = Path(file)
    return str(path.relative_to(root)) if path.is_relative_to(root) else file


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _cell(text: str) -> str:
    """`text` as it stands, whatever Markdown makes of its characters."""
    return "".join(f"&#{ord(c)};" if c in "\\`|<>*_[]\n" else c for c in text)
