"""Where a model's layers come from: a function in a Python file, or an ONNX file."""

from __future__ import annotations

from memplan.blocking.run.inventory import ModelLayers
from memplan.blocking.run.models import layers_of_model
from memplan.blocking.run.onnx_models import SUFFIX, layers_of_onnx


def is_model(text: str) -> bool:
    """Whether it names a model, and not a layer or a network."""
    return ":" in text or text.endswith(SUFFIX)


def layers_of_source(spec: str) -> ModelLayers:
    """The layers of ``model.py:factory`` or ``model.onnx``, which may be followed by
    sizes of dimensions that it leaves open: ``model.onnx:batch=8``.

    Raises UsageError, InputError or EnvironmentUnfitError, with the reason.
    """
    onnx = spec.endswith(SUFFIX) or f"{SUFFIX}:" in spec
    return layers_of_onnx(spec) if onnx else layers_of_model(spec)
