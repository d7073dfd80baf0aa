"""Fused networks beside eager, torch.compile, ONNX Runtime and OpenVINO.

Every contender is a process of its own, in which the first call compiles. What changing
an input's layout costs is part of everybody's time. A contender whose result is not
eager's leaves. `memplan:1` and `memplan:5` are the strategies of BrainSlug's Figure 10;
`memplan:compile` is `memplan compile --pack`. Of 40 networks that memplan was not built
for, those of models/wild.py, timm and torchvision have most.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from models import vision, wild

from bench.planned import exported
from bench.runner import BenchError, Contender, Figures, Metric, Suite, timed
from bench.worker import Worker
from memplan.compiling.summary import peak_bytes
from memplan.graph.check import relative_error

MOST_ERROR = 1e-3  # relative, of a result
MOST_CALLS, TURN_SECONDS = 50, 0.2  # in one turn

# From an input (N, C, H, W), contiguous, to the network's result, a tensor.
Call = Callable[[Any], Any]


@dataclass(frozen=True)
class Job:
    """What a contender runs. folder: its own, for files and caches."""

    contender: str
    network: str
    batch: int
    threads: int
    folder: str


def _channels_last(model: Any) -> Call:
    model = model.to(memory_format=torch.channels_last)
    return lambda x: model(x.contiguous(memory_format=torch.channels_last))


def _compiled(model: Any, frozen: bool = False, last: bool = False) -> Call:
    if frozen:
        config: Any = importlib.import_module("torch._inductor.config")
        config.freezing = True  # for the whole process: a contender has its own
    form = torch.channels_last if last else torch.contiguous_format
    run = torch.compile(model.to(memory_format=form), dynamic=False)
    return lambda x: run(x.contiguous(memory_format=form))


def _onnxruntime(model: Any, job: Job) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(_exported(model, job)), options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def _openvino(model: Any, job: Job) -> Call:
    import openvino

    options = {
        "INFERENCE_NUM_THREADS": job.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        # Where a processor has bfloat16 the default is that, and errors of 1 %.
        "INFERENCE_PRECISION_HINT": "f32",
    }
    converted = openvino.convert_model(str(_exported(model, job)))
    request = openvino.compile_model(converted, "CPU", options).create_infer_request()

    def run(x: Any) -> Any:
        found = request.infer([x.numpy()], share_inputs=True, share_outputs=True)
        return torch.from_numpy(found[0])

    return run


def _exported(model: Any, job: Job) -> Path:
    example = (network_input(job.network, job.batch),)
    return exported(model, example, Path(job.folder))


def _memplan(max_steps: int | None = None) -> Callable[[Any, Job], Call]:
    """max_steps: of a sequence, the strategies of BrainSlug's Figure 10."""

    def make(model: Any, _: Job) -> Call:
        import memplan

        return memplan.fuse(model, memplan.FuseOptions(max_steps=max_steps))

    return make


def _arena(model: Any, job: Job) -> Call:
    import memplan

    example = (network_input(job.network, job.batch),)
    return memplan.compile(model, example, None, memplan.CompileOptions(pack=True))


CONTENDERS: dict[str, Callable[[Any, Job], Call]] = {
    "eager": lambda model, _: model,
    "channels_last": lambda model, _: _channels_last(model),
    "compile": lambda model, _: _compiled(model),
    "compile:freezing": lambda model, _: _compiled(model, frozen=True),
    "compile:freezing_channels_last": lambda model, _: _compiled(
        model, frozen=True, last=True
    ),
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "memplan": _memplan(),
    "memplan:compile": _arena,
    "memplan:1": _memplan(1),
    "memplan:5": _memplan(5),
}


def turns(job: Job) -> Callable[[], Figures]:
    """A contender, called once; each call of the result is a turn."""
    torch.set_num_threads(job.threads)
    given, model = network_input(job.network, job.batch), network(job.network)
    begin = time.perf_counter()
    with torch.no_grad():
        call = CONTENDERS[job.contender](model, job)
        found = call(given)
        always = {"first_call": time.perf_counter() - begin}
        always["error"] = relative_error(
            network(job.network)(given), found.contiguous()
        )
        # With the arena that memplan keeps.
        if job.contender == "memplan:compile":
            arena = call.memplan.arena  # type: ignore[attr-defined]
            always["activations"] = peak_bytes(lambda: call(given), None) + arena
        else:
            fused = call if job.contender.startswith("memplan") else None
            always["activations"] = peak_bytes(lambda: call(given), fused)
    gc.collect()
    gc.freeze()  # the collector would look through all that compiling left

    def turn() -> Figures:
        """The figures of one call, times as medians of a turn's calls."""
        runs: list[Figures] = []
        with torch.no_grad():
            while (
                len(runs) < MOST_CALLS
                and sum(run["seconds"] for run in runs) < TURN_SECONDS
            ):
                runs.append(timed(call, given)())
        return always | {name: median(run[name] for run in runs) for name in runs[0]}

    return turn


def network(name: str) -> torch.nn.Module:
    """A network in evaluation mode, the same in every process."""
    return wild.build(name) if name in wild.NETWORKS else vision.build(name)


def network_input(name: str, batch: int) -> Any:
    """The input that all contenders get: noise, contiguous, by a fixed seed."""
    known = wild.NETWORKS.get(name)
    shape = known[1] if known else vision.input_shape(name)
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, *shape, generator=generator)


class Process:
    """A contender's process, started when it is first asked."""

    def __init__(self, job: Job, timeout: float) -> None:
        self._job, self._timeout = job, timeout
        self._worker: Worker | None = None

    def run(self) -> Figures:
        """The figures of a turn. Raises BenchError when it fails or is late."""
        if self._worker is None:
            # Threads are settled before torch loads; caches are the contender's own.
            environment = {
                "TORCHINDUCTOR_CACHE_DIR": str(Path(self._job.folder, "inductor")),
                "MEMPLAN_CACHE_DIR": str(Path(self._job.folder, "memplan")),
                "OMP_NUM_THREADS": str(self._job.threads),
                "MKL_NUM_THREADS": str(self._job.threads),
            }
            self._worker = Worker(turns, self._job, environment=environment)
            self._worker.answer(self._timeout)
        answer = self._worker.answer(self._timeout)
        if not answer["error"] <= MOST_ERROR:
            raise BenchError(f"its result is not eager's: error {answer['error']:.0e}")
        return dict(answer)


def contenders(
    network: str, args: argparse.Namespace, folder: Path
) -> Sequence[Contender]:
    """A process for each way to run a network, in a folder of its own."""
    found = []
    for number, name in enumerate(CONTENDERS):
        own = folder / str(number)
        own.mkdir()
        job = Job(name, network, args.batch, args.threads, str(own))
        found.append(Contender(name, Process(job, args.timeout).run))
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=8, help="images at once")


SUITE = Suite(
    summary="Fused networks beside other ways to run them.",
    cases={
        name: name
        for name in (*vision.NAMES, "stack:1", "stack:10", "stack:40", *wild.NETWORKS)
    },
    contenders=contenders,
    metrics=(
        Metric("seconds", "ms", 1e3, 2),
        Metric("cpu_seconds", "CPU ms", 1e3, 2),
        Metric("activations", "activations MiB", 1 / (1 << 20), 1),
        Metric("first_call", "first call s", 1, 1, compared=False),
        Metric("error", "error × 1e-6", 1e6, 1, compared=False),
    ),
    packages=("torch", "onnxruntime", "openvino"),
    add_arguments=add_arguments,
)
