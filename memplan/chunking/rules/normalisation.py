"""Normalisations: any dimension over which no statistics are taken."""

from __future__ import annotations

from memplan.chunking.rules.arguments import changed, given, integers, needing, shape
from memplan.chunking.rules.flow import Call, Flow, Rule, Slice
from memplan.graph.program import extent

AFFINE = ("weight", "bias", "running_mean", "running_var")  # one for each channel


def layer_norm(call: Call, out: Slice) -> Flow | None:
    """Dimensions before the normalised ones; weight and bias are taken whole."""
    normalised = len(integers(given(call)["normalized_shape"], 1))
    if out.dim >= len(call.shape) - normalised:
        return None
    return Flow(needing(call, {"input": out}))


def batch_norm(call: Call, out: Slice) -> Flow | None:
    """With given statistics, any dimension; they are sliced with the channels."""
    if given(call).get("training"):
        return None
    return Flow(needing(call, {"input": out, **_channels(out)}))


def instance_norm(call: Call, out: Slice) -> Flow | None:
    """Batch and channel; statistics that would be updated must not be there."""
    arguments = given(call)
    if out.dim > 1 or not arguments["use_input_stats"]:
        return None
    if arguments["running_mean"] is not None or arguments["running_var"] is not None:
        return None
    return Flow(needing(call, {"input": out, **_channels(out)}))


def _channels(out: Slice) -> dict[str, Slice | None]:
    return dict.fromkeys(AFFINE, out._replace(dim=0) if out.dim == 1 else None)


def group_norm(call: Call, out: Slice) -> Flow | None:
    """The batch alone; in other dimensions it takes two passes (`group_norm_apply`)."""
    return Flow(needing(call, {"input": out})) if out.dim == 0 else None


def native_group_norm(call: Call, out: Slice) -> Flow | None:
    """The batch alone, whose size is also an argument."""
    if out.dim != 0:
        return None
    return changed(call, needing(call, {"input": out}), {"N": extent(call.window(out))})


def group_norm_statistics(call: Call, out: Slice) -> Flow | None:
    """The batch alone: a group is that of one sample."""
    return Flow((out,)) if out.dim == 0 else None


def group_norm_apply(call: Call, out: Slice) -> Flow | None:
    """Any dimension: a mean and a scale for each sample and channel are given."""
    channels = out._replace(dim=0) if out.dim == 1 else None
    statistics = out if out.dim <= 1 else None
    mean = shape(call, "mean")
    if statistics is not None and (mean is None or mean[out.dim] == 1):
        return None
    slices = {"x": out, "mean": statistics, "rstd": statistics}
    return Flow(needing(call, {**slices, "weight": channels, "bias": channels}))


RULES: dict[str, Rule] = {
    "aten.layer_norm": layer_norm,
    "aten.native_layer_norm": layer_norm,
    "aten.rms_norm": layer_norm,
    "aten._fused_rms_norm": layer_norm,
    "aten.batch_norm": batch_norm,
    "aten.native_batch_norm": batch_norm,
    "aten._native_batch_norm_legit_no_training": batch_norm,
    "aten.instance_norm": instance_norm,
    "aten.group_norm": group_norm,
    "aten.native_group_norm": native_group_norm,
    "group_norm_statistics": group_norm_statistics,
    "group_norm_apply": group_norm_apply,
}
