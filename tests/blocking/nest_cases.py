"""The cases that blocking is held against: our own, and the reference ones, which lie
beside the checkout or are skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

OWN = ROOT / "tests/data/nests.json"
REFERENCE = ROOT.parent / "shared/blocking/cases.json"
needs_reference = pytest.mark.skipif(
    not REFERENCE.exists(), reason="no reference cases beside the checkout"
)


def read(path: Path) -> dict[str, Any]:
    """The document with `cases`; without any, if it is not there."""
    if not path.exists():
        return {"cases": [], "energy_table": []}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def every_case(having: str = "exact") -> pytest.MarkDecorator:
    """Runs a test of `case` on each with this key; one is skipped for all absent."""
    params = [
        pytest.param(case, id=f"{case['layer']['name']}-{i}")
        for path in (OWN, REFERENCE)
        for i, case in enumerate(read(path)["cases"])
        if having in case
    ]
    if not REFERENCE.exists():
        params.append(pytest.param(None, id="reference", marks=needs_reference))
    return pytest.mark.parametrize("case", params)
