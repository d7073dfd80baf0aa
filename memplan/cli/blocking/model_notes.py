"""What of a model is in none of its layers, and how its count agrees with torch's."""

from __future__ import annotations

from memplan.blocking.run.inventory import LeftOut, ModelLayers
from memplan.cli import show
from memplan.units import format_gap


def tell(model: ModelLayers) -> None:
    """As notes: what was left out and its share, what is counted in another form, and
    where torch's own counter says otherwise."""
    for one in model.left_out:
        show.note(f"left out {one.where}: {one.reason}; {share_text(model, one)}")
    for note in model.notes:
        show.note(note)
    if model.difference:
        show.complaint(f"the multiply-adds are not torch's: {check_text(model)}")


def share_text(model: ModelLayers, one: LeftOut) -> str:
    """Its part of all multiply-adds that are known."""
    if one.macs is None:
        return "its multiply-adds are not known"
    return f"{format_gap(model.share(one.macs))} of the multiply-adds"


def check_text(model: ModelLayers) -> str:
    """What torch's own counter says of the same run."""
    if model.reference is None:
        return "no count of torch's to compare with: nothing was run"
    said = f"torch's counter has {model.reference.macs:,}"
    for operation, macs in model.reference.unknown:
        part = format_gap(model.share(macs))
        said += f"; it has no formula for {operation}, {part} here"
    if not model.difference:
        return said + ("; otherwise the same" if model.reference.unknown else ", too")
    more = "more" if model.difference > 0 else "fewer"
    part = format_gap(model.share(abs(model.difference)))
    return f"{said}; of what both count there are {part} {more} here"


def entries(model: ModelLayers) -> dict[str, object]:
    """The same as JSON."""
    reference = model.reference
    return {
        "macs": model.macs,
        "counted_macs": model.counted,
        "left_out": [
            {
                "where": one.where,
                "reason": one.reason,
                "macs": one.macs,
                "share": None if one.macs is None else model.share(one.macs),
            }
            for one in model.left_out
        ],
        "notes": list(model.notes),
        "torch": None
        if reference is None
        else {
            "macs": reference.macs,
            "without_formula": dict(reference.unknown),
            "difference": model.difference,
        },
    }
