"""Problems from files whose peaks are known: our own, and published ones, which lie
beside the checkout (or in $MEMPLAN_TRACES) or are skipped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import ROOT

OWN = ROOT / "tests/data"
PUBLISHED = Path(os.environ.get("MEMPLAN_TRACES", ROOT.parent / "shared" / "traces"))
BESTFIT = {
    "minimalloc/A.1048576.csv": 1264640,
    "minimalloc/B.1048576.csv": 1198080,
    "minimalloc/C.1048576.csv": 1270784,
    "minimalloc/D.1048576.csv": 1190912,
    "minimalloc/E.1048576.csv": 1491968,
    "minimalloc/F.1048576.csv": 1333248,
    "idealloc/resnet50.csv": 1521895084,
    "idealloc/S_1.csv": 1565868718,
}


class Known(NamedTuple):
    """A problem's file and peaks in bytes: best fit's, and for our own the lower bound
    and the least."""

    path: Path
    bestfit: int
    lower_bound: int = 0
    optimum: int = 0


def own() -> list[Known]:
    """Those in the checkout."""
    rows = json.loads((OWN / "packing.json").read_text(encoding="utf-8")).items()
    return [Known(OWN / "packing" / f"{name}.csv", **peaks) for name, peaks in rows]


def published() -> list[Known]:
    """Those beside the checkout, there or not."""
    return [Known(PUBLISHED / name, peak) for name, peak in BESTFIT.items()]


# Those that are absent are skipped.
every_problem = pytest.mark.parametrize(
    "known",
    [
        pytest.param(
            known,
            id=known.path.stem,
            marks=pytest.mark.skipif(not known.path.exists(), reason="it is not here"),
        )
        for known in own() + published()
    ],
)
every_own_problem = pytest.mark.parametrize("known", own(), ids=lambda k: k.path.stem)
