"""One contender in a process of its own: made, called first, then timed on request.

Run as ``python -m memplan.fusing.bench.worker JOB``, JOB being a Job as JSON. It
answers each line of standard input, the name of a request, by a line of JSON; the first
answer comes unasked, when the contender has been called once.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from memplan.errors import MemplanError
from memplan.factory import reason
from memplan.fusing import networks
from memplan.fusing.bench.contenders import Call, Setting, kept_bytes, prepared

MOST_CALLS = 50  # in one turn
MOST_REMARKS = 5  # of one contender
COLD_SECONDS = 0.2  # a call that takes longer does not need another to warm it up


@dataclass(frozen=True)
class Job:
    """What a worker is to time. folder: its own, for files and caches, absolute.
    turn_seconds: calls in one turn go on for so long."""

    contender: str
    network: str
    batch: int
    threads: int
    folder: str
    turn_seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Worker:
    """A contender that has been called once. first_call: seconds from the network, as
    torch has it, until its first result; remarks: what it warned of meanwhile."""

    def __init__(self, job: Job) -> None:
        import torch

        torch.set_num_threads(job.threads)
        self.job = job
        model = networks.build(job.network)
        self._input = an_input(job.network, job.batch)
        setting = Setting(self._input, job.threads, Path(job.folder))
        started = time.perf_counter()
        with torch.no_grad(), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            self._call: Call = prepared(job.contender, model, setting)
            self._call(self._input)
        self.first_call = time.perf_counter() - started
        said = dict.fromkeys(" ".join(str(one.message).split()) for one in warned)
        self.remarks = [text[:500] for text in said][:MOST_REMARKS]
        self._usual = self.first_call
        gc.collect()
        gc.freeze()  # what took part in compiling would be looked through for ever

    def turn(self) -> dict[str, Any]:
        """Seconds of one call, the median of a turn's: by the clock, and of processor
        time of all threads."""
        import torch

        walls: list[float] = []
        works: list[float] = []
        with torch.no_grad():
            if self._usual < COLD_SECONDS:
                self._call(self._input)
            while len(walls) < MOST_CALLS and sum(walls) < self.job.turn_seconds:
                work, wall = time.process_time(), time.perf_counter()
                self._call(self._input)
                walls.append(time.perf_counter() - wall)
                works.append(time.process_time() - work)
        self._usual = min(walls)
        return {"wall": median(walls), "cpu": median(works)}

    def error(self) -> dict[str, Any]:
        """The largest difference to eager, over the largest value there."""
        import torch

        from memplan.graph.measure import relative_error

        with torch.no_grad():
            expected = networks.build(self.job.network)(self._input)
            found = relative_error(expected, self._call(self._input).contiguous())
        return {"error": found if found < float("inf") else None}

    def memory(self) -> dict[str, Any]:
        """Bytes of activations at their peak, the result among them."""
        from memplan.graph.measure import activation_peak

        made = activation_peak(lambda: self._call(self._input))
        return {"bytes": made + kept_bytes(self._call)}

    def shares(self) -> dict[str, Any]:
        """Layers, stacks and the share of time, as the paper counts them; in eager."""
        from memplan.fusing.bench.shares import counted, share_of_time

        model = networks.build(self.job.network)
        share = share_of_time(lambda: model(self._input))
        return {**counted(model), "share_of_time": share}


REQUESTS: Mapping[str, Callable[[Worker], dict[str, Any]]] = {
    "turn": Worker.turn,
    "error": Worker.error,
    "memory": Worker.memory,
    "shares": Worker.shares,
}


def an_input(network: str, batch: int) -> Any:
    """The input that all contenders get: noise, contiguous, by a fixed seed."""
    import torch

    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, *networks.input_shape(network), generator=generator)


def answers(job: Job, requests: Iterator[str]) -> Iterator[dict[str, Any]]:
    """An answer for the first call and for each request. One that holds a `failure`,
    the reason on one line, is the last."""
    try:
        worker = Worker(job)
        yield {"first_call": worker.first_call, "remarks": worker.remarks}
        for request in requests:
            yield REQUESTS[request.strip()](worker)
    except MemplanError as error:
        yield {"failure": str(error)}
    except Exception as error:
        yield {"failure": reason(error)[:500]}


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    # Exporters and compilers print, some from C: answers have a descriptor that only
    # this function knows, and whatever else is printed goes to standard error.
    channel = os.dup(1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    for answer in answers(job, iter(sys.stdin)):
        os.write(channel, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
