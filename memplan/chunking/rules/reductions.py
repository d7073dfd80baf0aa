"""Sums, extrema, sorts and softmax: any dimension that is not reduced or ordered."""

from __future__ import annotations

from memplan.chunking.rules.arguments import given, integers, positive
from memplan.chunking.rules.elementwise import elementwise
from memplan.chunking.rules.flow import Call, Flow, Rule, Slice, each

REDUCTIONS = """
all amax amin aminmax any argmax argmin count_nonzero kthvalue linalg_vector_norm
logsumexp max mean median min mode nanmean nanmedian nansum norm prod std std_mean sum
var var_mean
"""

ALONG = """
argsort cumprod cumsum cummax cummin diff
_log_softmax log_softmax logcumsumexp _safe_softmax
_softmax softmax sort topk glu fft_fft fft_ifft fft_rfft fft_irfft
"""


def reduction(call: Call, out: Slice) -> Flow | None:
    """Dimensions that are kept, renumbered where the reduced ones are dropped."""
    if len(call.operands) == 2:  # max and min of two tensors
        return elementwise(call, out)
    arguments = given(call)
    dims = arguments.get("dim")
    if dims is None or dims == []:
        return None
    rank = len(call.operands[0].shape)
    reduced = {positive(dim, rank) for dim in integers(dims, 1)}
    if len(call.shape) == rank:
        return Flow((out,)) if out.dim not in reduced else None
    kept = [dim for dim in range(rank) if dim not in reduced]
    return Flow((out._replace(dim=kept[out.dim]),)) if len(kept) > out.dim else None


def along(call: Call, out: Slice) -> Flow | None:
    """Whatever runs along one dimension leaves the others apart."""
    dim = given(call).get("dim")
    if not isinstance(dim, int) or len(call.operands) != 1:
        return None
    return Flow((out,)) if positive(dim, len(call.shape)) != out.dim else None


RULES: dict[str, Rule] = {
    **each(REDUCTIONS, reduction),
    **each(ALONG, along),
}
