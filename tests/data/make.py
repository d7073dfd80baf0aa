"""Makes this folder's files anew: `python -m tests.data.make` in the checkout.

packing/*.csv and packing.json: problems with known least peaks. The `cut` ones are
    pieces of a full rectangle, so that nothing ends below its height; the `loose` ones
    are small, need more than their lower bound, and were packed in every order.
nests.json: loop nests of small layers. All counts are those of nest_trace.py, which
    executes the loops element by element; energies and places are memplan's, frozen
    when they agreed with cases computed by other hands.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import parse_nest
from memplan.core.bounds import lower_bound
from memplan.core.problem import Problem
from memplan.solving.bestfit import solve
from memplan.trace.exporters.minimalloc import write_minimalloc

HERE = Path(__file__).parent
sys.path += [str(HERE.parent / room) for room in ("solving", "blocking")]

from exact_oracle import brute_force  # noqa: E402
from nest_trace import Row, trace  # noqa: E402
from puzzles import puzzle  # noqa: E402

CUT = {"cut-30": (30, 96), "cut-60": (60, 768), "cut-400": (400, 40_000)}
LOOSE = {f"loose-{n}": n for n in (7, 8, 9)}
GRAIN = 64  # bytes

# C, K, X, Y, Fw, Fh, as --layer has them; then strings, each with its unrolling.
NESTS: dict[tuple[int, ...], list[tuple[str, str]]] = {
    (3, 5, 6, 4, 1, 1): [
        ("X3 C3 Y2 K5 X6 Y4", ""),
        ("K5 Y4 X2 C3 X6", ""),
        ("C3 K5 X6 Y4", ""),
    ],
    (4, 6, 6, 6, 3, 3): [
        ("Fw3 Fh3 X2 Y3 C2 K3 X6 Y6 C4 K6", ""),
        ("X3 Y3 Fw3 Fh3 K2 C4 X6 K6 Y6", ""),
        ("Fw3 Fh3 K2 X6 C2 Y2 K6 C4 Y6", ""),
        ("Fw3 Fh3 X2 K6 Y2 C4 X6 Y6", "C2,K2"),
        ("X2 Y2 Fw3 Fh3 C4 K6 X6 Y6", "C4,K2"),
    ],
    (2, 4, 8, 3, 5, 1): [
        ("Fw5 X4 C2 K2 Y3 X8 K4", ""),
        ("Fw5 Y3 K4 X2 X8 C2", ""),
    ],
    (4, 2, 3, 8, 1, 3): [
        ("Fh3 Y4 X3 C2 K2 C4 Y8", ""),
        ("Y2 Fh3 C4 Y4 K2 Y8 X3", "K2"),
    ],
    (4, 8, 4, 4, 2, 2): [
        ("Fw2 Fh2 K4 C2 X2 Y2 K8 X4 C4 Y4", ""),
        ("Fw2 Fh2 X4 K2 C4 Y2 K8 Y4", "C2"),
    ],
}

KEPT = ("layer", "string", "unroll", "paper_literal", "pack_diannao", "pack_westmere")
KEPT += tuple(f"energy_codesign{kind}_pJ" for kind in ("", "_8MB", "_paper_literal"))


def loose(n: int) -> Problem:
    """n buffers of unlike alignments whose least peak is above their lower bound."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        lower = rng.integers(0, n, n)
        upper = lower + rng.integers(2, n, n)
        alignment = rng.choice([1, 2, 4], n)
        problem = Problem.of(lower, upper, rng.integers(1, 12, n), alignment=alignment)
        if brute_force(problem) > lower_bound(problem):
            return problem
    raise AssertionError(f"no draw of {n} buffers is loose")


def make_packing() -> None:
    problems = {name: loose(n) for name, n in LOOSE.items()}
    optima = {name: brute_force(problem) for name, problem in problems.items()}
    for name, (n, height) in CUT.items():
        made = puzzle(n, seed=n, height=height)
        problems[name] = Problem.of(made.lower, made.upper, made.size * GRAIN)
        optima[name] = height * GRAIN
    known = {}
    for name, problem in sorted(problems.items()):
        write_minimalloc(problem, HERE / "packing" / f"{name}.csv")
        known[name] = {
            "lower_bound": lower_bound(problem),
            "optimum": optima[name],
            "bestfit": solve(problem).peak,
        }
    text = json.dumps(known, indent=1)
    (HERE / "packing.json").write_text(f"{text}\n", encoding="utf-8")


def counted(rows: list[Row]) -> dict[str, Any]:
    """Of one tensor, in the words of `blocking evaluate --json`."""
    *buffers, main = rows
    return {
        "buffers": [
            {
                "elements": row.elements,
                "reads_served": row.reads,
                "writes_from_below": row.writes,
                "fills_from_above": row.fills,
                "drains_to_above": row.drains,
            }
            for row in buffers
        ],
        "dram_accesses": main.reads + main.writes,
    }


def evaluated(sizes: tuple[int, ...], string: str, unroll: str) -> Any:
    """What `memplan blocking evaluate --json` says, as far as it is kept."""
    command = [sys.executable, "-m", "memplan", "blocking", "evaluate", "--json"]
    command += ["--layer", ",".join(map(str, sizes)), "--string", string]
    command += ["--unroll", unroll, "--memory", "diannao"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    return {key: said[key] for key in KEPT}


def make_nests() -> None:
    cases = []
    for sizes, nests in NESTS.items():
        c, k, x, y, fw, fh = sizes
        layer = Layer("own", X=x, Y=y, C=c, K=k, Fw=fw, Fh=fh)
        for string, unroll in nests:
            case = evaluated(sizes, string, unroll)
            nest = parse_nest(string, layer, case["unroll"])
            measured = {tensor.value: rows for tensor, rows in trace(nest).items()}
            case["exact"] = {name: counted(rows) for name, rows in measured.items()}
            case["brute_force"] = {
                name: [row._asdict() for row in rows] for name, rows in measured.items()
            }
            cases.append(case)
    lines = ",\n".join(map(json.dumps, cases))
    (HERE / "nests.json").write_text(f'{{"cases": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    make_packing()
    make_nests()
