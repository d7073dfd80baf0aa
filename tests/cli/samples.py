"""Small files that commands read: a problem, its plan, a trace, a blocking plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Fixed
from memplan.blocking.machine.hierarchy import Hierarchy, load_hierarchy
from memplan.blocking.nest.layer import parse_layer
from memplan.blocking.nest.nest import parse_nest
from memplan.blocking.plan import BlockingPlan, CurvePoint, PlannedLayer, Search
from memplan.blocking.planfile import write_plan as write_blocking_plan
from memplan.core.plan import Program
from memplan.core.planfile import write_plan
from memplan.solving.solve import solve
from memplan.trace.importers.minimalloc import read_minimalloc
from memplan.trace.trace import Trace
from memplan.trace.write import write_trace
from tests.core import plan_samples
from tests.plans import changed
from tests.trace import trace_samples

CSV = "id,lower,upper,size\na,0,4,3\nb,2,6,3\nc,4,8,4\nd,0,2,4\ne,6,9,4\n"
TOML = '[[level]]\nname = "{name}"\nshared = 65536\npj = 1.0\n'
STRING = "Fw3 Fh3 X4 Y4 C8 K8"
LAYER = "8,8,4,4,3,3"


def write_all(folder: Path) -> None:
    """p.csv, p.json (its plan), t.json (a trace), b.json, m.toml and s.py."""
    (folder / "p.csv").write_text(CSV)
    write_plan(solve(read_minimalloc(folder / "p.csv")), folder / "p.json")
    write_trace(trace_samples.sample(), folder / "t.json")
    write_blocking_plan(blocking_plan("L1", "conv", "m"), folder / "b.json")
    (folder / "m.toml").write_text(TOML.format(name="L1"))
    (folder / "s.py").write_text("print('ran')\n")


def blocking_plan(level: str, layer: str, memory: str) -> BlockingPlan:
    """A plan of one small layer, whose names are these."""
    given = load_hierarchy("xeon-e5645")
    levels = (replace(given.levels[0], name=level), *given.levels[1:])
    hierarchy: Hierarchy = replace(given, levels=levels)
    small = replace(parse_layer(LAYER), name=layer)
    found = evaluate(small, parse_nest(STRING, small, {}), Fixed(hierarchy))
    buffers = tuple(replace(one, name=f"{one.name}{level}") for one in found.buffers)
    search = Search(level, 0.25, None, False)
    planned = PlannedLayer(replace(found, buffers=buffers), search)
    point = CurvePoint(1 << 20, 65536, 12.5, found.total)
    return BlockingPlan((planned,), memory, 1 << 20, (point,))


def named_plan(text: str, *, recorded: bool) -> plan_samples.Plan:
    """A plan that says `text` wherever a plan may say what it likes."""
    plan = plan_samples.sample()
    labels = None if recorded else (text, "b", "c", "d")
    requests = plan_samples.recorded(plan.problem, [9], steps=2)
    return changed(
        plan,
        problem=replace(plan.problem, labels=labels),
        requests=requests if recorded else None,
        warmup=plan.warmup if recorded else None,
        method=text,
        source=replace(plan.provenance.source, name=text),
        program=Program(text, "cd" * 32, text, 2, "optimizer"),
    )


def named_trace(text: str) -> Trace:
    """A trace that says `text` wherever a trace may say what it likes."""
    trace = trace_samples.sample()
    info = replace(
        trace.info,
        program=replace(trace.info.program, script=text, torch=text),
        device=text,
        argv=(text, "--flag", text),
        started=text,
        producer=text,
    )
    return replace(trace, info=info)
