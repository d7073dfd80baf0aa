"""Training on a GPU: recorded, planned, and the same under its plan."""

from __future__ import annotations

import json

import memplan
from memplan.trace.liveness import step_problem
from tests.gpu.conftest import ROOT, Bench


def test_a_recording_of_the_gpu_has_a_step_that_repeats(planned_bench: Bench) -> None:
    trace = memplan.read_trace(planned_bench.folder / "t.parquet")
    assert trace.info.device == "cuda"
    assert trace.info.alignment == 512
    assert trace.info.complete
    assert trace.info.dropped_events == 0
    found = step_problem(trace)
    assert found.hot is not None
    assert len(found.problem) > 10
    assert found.persistent_bytes > 4 * (1024 * 4096 * 2)


def test_the_plan_of_fixed_shapes_is_close_to_the_lower_bound(
    planned_bench: Bench,
) -> None:
    plan = json.loads((planned_bench.folder / "p.json").read_text())
    assert plan["peak"] <= 1.02 * plan["bounds"]["lower_bound"]


def test_a_program_computes_the_same_under_its_plan(planned_bench: Bench) -> None:
    alone = planned_bench.python("train.py", "20")
    under, report = planned_bench.planned("train.py", "20")
    assert under.stdout == alone.stdout
    assert report["steps"] >= 19
    assert report["conflicts"] == 0
    assert report["planned_requests"] >= 0.99 * report["requests"]


def test_the_arena_is_no_larger_than_what_torch_reserves(planned_bench: Bench) -> None:
    alone = planned_bench.python("train.py")
    native = int(alone.stderr.split()[-1])
    _, report = planned_bench.planned("train.py")
    assert 0 < report["arena_bytes"] <= native
    assert report["device_memory"]["0"]["reserved_peak"] <= 1.05 * native


def test_a_snapshot_that_torch_dumps_is_read(bench: Bench) -> None:
    bench.write(
        "dump.py",
        "import torch\n"
        "torch.cuda.memory._record_memory_history()\n"
        "kept = [torch.ones(1000 * i, device='cuda') for i in range(1, 50)]\n"
        "del kept[::2]\n"
        "torch.cuda.memory._dump_snapshot('s.pickle')\n",
    )
    bench.python("dump.py")
    trace = memplan.read_trace(bench.folder / "s.pickle")
    assert trace.info.device == "cuda"
    assert int((trace.events.action == 0).sum()) >= 49
    assert len(trace.stacks) > 0


def test_out_of_memory_is_what_torch_raises(planned_bench: Bench) -> None:
    planned_bench.write(
        "greedy.py",
        "import torch\n"
        "try:\n"
        "    torch.empty(1 << 50, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError as error:\n"
        "    print('out of memory' in str(error))\n"
        "print(float(torch.ones(10, device='cuda').sum()))\n",
    )
    done, report = planned_bench.planned("greedy.py")
    assert done.stdout == "True\n10.0\n"
    assert report["stats"]["out_of_memory"] == 1


def test_what_programs_ask_of_torch_ends_as_without_a_plan(bench: Bench) -> None:
    script = str(ROOT / "scripts" / "gpu" / "compatibility.py")
    record = ("record", "-q", "--device", "cuda", "-o", "t.parquet")
    bench.memplan(*record, script, "--steps-only")
    bench.memplan("solve", "t.parquet", "-o", "p.json")
    alone = bench.python(script)
    assert bench.memplan("apply", "-q", "p.json", script).stdout == alone.stdout
