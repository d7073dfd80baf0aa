"""The steps of each run of `visit.py`, and how long it takes at most."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

GPU = "scripts/gpu"
FACTS = """\
import sys, torch
print(sys.version)
print("torch", torch.__version__, "cuda", torch.version.cuda, torch.__file__)
for device in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(device), torch.cuda.mem_get_info(device))
"""


@dataclass(frozen=True)
class Step:
    """A command, as a shell would split it; python is this interpreter, {left} how many
    seconds there are left, {out} where the figures go.

    seconds: it may take; 0: all that are left. to: a file in the run's folder that gets
    its standard output. needs: a program without which it is left out.
    """

    name: str
    command: str
    seconds: float = 120
    to: str = ""
    needs: str = ""


def planned(program: str, plan: str) -> list[Step]:
    """Record `program`, and make the plan."""
    record = "python -m memplan record -q --force --device cuda"
    return [
        Step(f"record {plan}", f"{record} -o {plan}.parquet {program}"),
        Step(
            f"solve {plan}",
            f"python -m memplan solve --force {plan}.parquet -o {plan}.json",
        ),
    ]


PYTEST = "python -m pytest -q -rs -p no:cacheprovider"
COMPATIBILITY = f"{GPU}/compatibility.py"
SMALL = f"{GPU}/train.py gpt2 --batch-size 1 --length 128 --steps 6"
MANY = f"{GPU}/many_requests.py 300000"
SECONDS = {"tests": 330, "bench": 600, "programs": 360}  # of a run
RUNS: dict[str, list[Step]] = {
    "tests": [
        Step("driver", "nvidia-smi", needs="nvidia-smi"),
        Step("facts", f"python -c {shlex.quote(FACTS)}"),
        # A file of its own each: one that ends the interpreter ends no other. What the
        # programs' run does is not done here, too.
        *(
            Step(f"tests {name}", f"{PYTEST} tests/gpu/test_gpu_{name}.py{but}", 150)
            for name, but in (
                ("training", " -k 'not what_programs_ask'"),
                ("soak", ""),
                ("stacks", ""),
            )
        ),
        Step("requests", f"python {MANY}", 60),
        Step(
            "requests recorded",
            "python -m memplan record -q --force --device cuda --stacks none "
            f"--steps all -o m.parquet {MANY}",
            90,
        ),
        # As many requests as there is time for.
        Step("soak", f"python {GPU}/soak.py 1000000 --seconds {{left}}", 0),
    ],
    "bench": [
        # With the records, so that a second run goes on where time ran out.
        Step(
            "bench",
            "python scripts/benchmark.py gpu --timeout 150 --repeats 3 --warmups 0 "
            "--json {out}/bench.jsonl",
            0,
        )
    ],
    "programs": [
        Step("native", f"python {COMPATIBILITY}", to="native.txt"),
        *planned(f"{COMPATIBILITY} --steps-only", "c"),
        Step(
            "planned",
            f"python -m memplan apply -q c.json {COMPATIBILITY}",
            to="planned.txt",
        ),
        Step("planned as native", "diff native.txt planned.txt"),
        Step(
            "recorded",
            "python -m memplan record -q --force --device cuda --steps all "
            f"-o r.parquet {COMPATIBILITY}",
            to="recorded.txt",
        ),
        Step("recorded as native", "diff native.txt recorded.txt"),
        *planned(SMALL, "s"),
        # Last, as it takes longest: many times what it takes without.
        Step(
            "memcheck",
            "compute-sanitizer --tool memcheck --report-api-errors no "
            "--error-exitcode 99 --target-processes all "
            f"python -m memplan apply -q s.json {SMALL}",
            0,
            needs="compute-sanitizer",
        ),
    ],
}
