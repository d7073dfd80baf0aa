"""What became of a fused model, as JSON."""

from __future__ import annotations

from math import isfinite
from typing import Any

from memplan.fusing.examine import Examined
from memplan.fusing.summary import Fate, Part, Run
from memplan.fusing.traffic import traffic
from memplan.version import __version__


def entries(found: Examined) -> dict[str, Any]:
    """The document of `memplan fuse --json`; docs/formats.md says what is in it."""
    summary, worth = found.summary, found.worth
    error = worth.error
    return {
        "schema": "memplan.fuse",
        "version": 1,
        "producer": f"memplan {__version__}",
        "model": found.name,
        "status": summary.status,
        "reason": summary.reason,
        "torch": found.torch,
        "device": "cpu",
        "threads": found.threads,
        "seconds": worth.seconds,
        "ratio_to_eager": worth.ratios.get("median"),
        "ratios": worth.ratios or None,
        "max_relative_error": error if error is not None and isfinite(error) else None,
        "first_call_seconds": found.first_call,
        "peak_activation_bytes": worth.peaks,
        "copy_bytes_per_second": found.bandwidth,
        "warnings": found.said,
        "parts": [_part(each, found.bandwidth) for each in summary.parts],
    }


def _part(part: Part, bandwidth: float) -> dict[str, Any]:
    return {
        "path": part.path,
        "status": part.status,
        "reason": part.reason,
        "inputs": {name: list(shape) for name, shape in part.inputs.items()},
        "images": part.images,
        "images_at_a_time": part.at_a_time,
        "arena_bytes": part.arena,
        "arena_bound_bytes": part.bound,
        "kernels": part.kernels,
        "cache_limit_bytes": part.limit,
        "layers": [_layer(each) for each in part.layers],
        "stacks": [_stack(each, bandwidth) for each in part.running],
        "paper_stacks": [_stack(each, bandwidth) for each in part.found],
    }


def _layer(layer: Fate) -> dict[str, Any]:
    return {
        "name": layer.name,
        "place": layer.place,
        "operator": layer.operator,
        "shape": list(layer.shape),
        "became": layer.became,
        "into": layer.into,
        "kernel": layer.kernel,
        "reason": layer.reason,
    }


def _stack(run: Run, bandwidth: float) -> dict[str, Any]:
    sequences = run.stack.sequences
    moved = traffic(run.stack, run.shape, run.itemsize)
    return {
        "name": run.name,
        "layers": list(run.layers),
        "input": list(run.shape),
        "runs_by": run.by,
        "operations": len(run.stack.operations),
        "steps": len(run.stack.steps),
        "traffic_bytes": moved.layerwise,
        "traffic_bytes_fused": moved.depth_first,
        "predicted_gain_seconds": moved.saved / bandwidth,
        "sequences": [
            {
                "steps": [
                    [str(each) for each in step.operations] for step in one.steps
                ],
                "patch": list(one.patch),
                "cache_bytes": one.bytes,
            }
            for one in sequences
        ],
    }
