"""Ways to run a network on a CPU: torch's own, those of its peers, and memplan's."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memplan.errors import EnvironmentUnfitError, UsageError

# From an input (N, C, H, W), contiguous, to the network's result, a tensor. Whatever
# another layout costs is part of the call.
Call = Callable[[Any], Any]


@dataclass(frozen=True)
class Setting:
    """What a contender is made for: threads, a network's first input, and a folder of
    its own for files that it must write."""

    example: Any
    threads: int
    folder: Path


def _eager(model: Any, _: Setting) -> Call:
    return model  # type: ignore[no-any-return]


def _channels_last(model: Any, _: Setting) -> Call:
    import torch

    model = model.to(memory_format=torch.channels_last)
    return lambda x: model(x.contiguous(memory_format=torch.channels_last))


def _compiled(model: Any, _: Setting) -> Call:
    import torch

    run: Call = torch.compile(model, dynamic=False)
    return run


def _frozen(model: Any, setting: Setting) -> Call:
    _freeze()
    return _compiled(model, setting)


def _frozen_channels_last(model: Any, setting: Setting) -> Call:
    import torch

    _freeze()
    model = model.to(memory_format=torch.channels_last)
    run = _compiled(model, setting)
    return lambda x: run(x.contiguous(memory_format=torch.channels_last))


def _freeze() -> None:
    config: Any = importlib.import_module("torch._inductor.config")
    config.freezing = True  # for the whole process: a contender has its own


def _onnxruntime(model: Any, setting: Setting) -> Call:
    import torch

    runtime = _peer("onnxruntime")
    file = exported(model, setting)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = setting.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = runtime.InferenceSession(
        str(file), options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def _openvino(model: Any, setting: Setting) -> Call:
    import torch

    runtime = _peer("openvino")
    options = {
        "INFERENCE_NUM_THREADS": setting.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        # Where a processor has bfloat16 the default is that, and errors of 1 %.
        "INFERENCE_PRECISION_HINT": "f32",
    }
    converted = runtime.convert_model(str(exported(model, setting)))
    request = runtime.compile_model(converted, "CPU", options).create_infer_request()

    def run(x: Any) -> Any:
        found = request.infer([x.numpy()], share_inputs=True, share_outputs=True)
        return torch.from_numpy(found[0])

    return run


def _memplan(most_steps: int | None = None) -> Callable[[Any, Setting], Call]:
    """All that fusing asks of memplan, in one place: `fuse`, and the strategies of the
    paper's Figure 10 by the most steps a sequence may have (None: as it chooses)."""

    def make(model: Any, _: Setting) -> Call:
        fusing: Any = _peer("memplan.fusing.fuse")
        if most_steps is None:
            return fusing.fuse(model)  # type: ignore[no-any-return]
        options: Any = _peer("memplan.fusing.options")
        chosen = options.FuseOptions(max_steps=most_steps)
        return fusing.fuse(model, options=chosen)  # type: ignore[no-any-return]

    return make


def kept_bytes(call: Call) -> int:
    """Bytes of activations that a contender keeps from call to call: the arena that
    memplan runs a network in; 0 of the others."""
    programs = call.programs() if hasattr(call, "programs") else []
    engines = [program.engine for program in programs if hasattr(program, "engine")]
    return sum(int(engine.arena.bytes) for engine in engines)


_CONTENDERS: dict[str, Callable[[Any, Setting], Call]] = {
    "eager": _eager,
    "channels_last": _channels_last,
    "compile": _compiled,
    "compile:freezing": _frozen,
    "compile:freezing_channels_last": _frozen_channels_last,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "memplan": _memplan(),
    "memplan:1": _memplan(1),
    "memplan:5": _memplan(5),
}
NAMES = tuple(_CONTENDERS)

# `compile` stands for the fastest of these, on each network anew.
COMPILED = tuple(name for name in NAMES if name.partition(":")[0] == "compile")


def check(name: str) -> None:
    """Raise UsageError unless `name` is one of NAMES."""
    if name not in _CONTENDERS:
        raise UsageError(f"{name!r} is no contender; there are {', '.join(NAMES)}")


def prepared(name: str, model: Any, setting: Setting) -> Call:
    """The contender `name`, made of a network in evaluation mode, which is its to
    change. What it does only when first called is still to be done.

    Raises UsageError for other names, EnvironmentUnfitError where a package that it
    needs is not installed, and whatever else that package raises.
    """
    check(name)
    return _CONTENDERS[name](model, setting)


def _peer(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise EnvironmentUnfitError(f"{error.name} is not installed") from None


def exported(model: Any, setting: Setting) -> Path:
    """The network as an ONNX file, for inputs of the example's shape.

    By torch's older exporter, which folds normalisation and needs fewest packages;
    by the newer where that fails. Raises what the newer raises.
    """
    import torch

    file = setting.folder / "network.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are two exporters, mostly
        with contextlib.suppress(torch.onnx.errors.OnnxExporterError, RuntimeError):
            torch.onnx.export(model, (setting.example,), str(file), dynamo=False)
            return file
        torch.onnx.export(model, (setting.example,), str(file), dynamo=True)
    return file
