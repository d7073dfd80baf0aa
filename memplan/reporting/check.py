"""Gates: a peak within a limit, not above an earlier one, and no leak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memplan.core.plan import Plan
from memplan.errors import UsageError, as_options, expected
from memplan.files import PathLike
from memplan.reporting.diff import diff
from memplan.reporting.stats import OutOfMemory, Stats, has_cycles, summarize
from memplan.trace.read import as_trace_or_plan
from memplan.trace.reserved import most_reserved
from memplan.trace.sites import Site
from memplan.trace.trace import NO_HISTORY, Trace
from memplan.units import format_bytes

Of = Literal["live", "reserved", "planned"]


@dataclass(frozen=True)
class Limits:
    """What must hold. most: bytes. baseline: an earlier trace, or a plan for a plan, or
    the path of either, whose peak may be exceeded by `tolerance`, a share of it, and no
    more. no_leak: and nothing grows. no_cycles: and Python's cycle collector frees no
    more than 1 % of the peak.

    of: what is held against them, of a trace: "live" at the peak; "reserved", the most
    that the CUDA allocator took from its device; "planned", the bytes of a best-fit
    plan's arena, all its lanes, with the most that is alive outside it later on, and no
    less than was live at once. Of a plan: always its arena.
    Raises UsageError where nothing is asked.
    """

    most: int | None = None
    baseline: Trace | Plan | PathLike | None = None
    tolerance: float = 0.0
    no_leak: bool = False
    no_cycles: bool = False
    of: Of = "live"

    def __post_init__(self) -> None:
        flags = self.no_leak or self.no_cycles
        if self.most is None and self.baseline is None and not flags:
            raise UsageError(
                "nothing to check: give most, baseline, no_leak or no_cycles",
                shell="nothing to check: give --max, --baseline, --no-leak or "
                "--no-cycles",
            )
        if self.tolerance and self.baseline is None:
            raise UsageError(
                "a tolerance is for a baseline; give that, too",
                shell="--tolerance is for --baseline; give that, too",
            )


@dataclass(frozen=True)
class Verdict:
    """Whether a check passed, and why not, on one line.

    value, limit: bytes; limit is None where only a leak was looked for. site: where the
    most is live, what grew most since the baseline, or what leaks; None if unknown.
    """

    passed: bool
    message: str
    value: int
    limit: int | None
    site: Site | None


def check(source: Trace | Plan | PathLike, limits: Limits) -> Verdict:
    """Hold a trace or a plan, or that in a file, against limits; the first that it
    breaks is told.

    A trace in which a request failed does not pass: its program needed more than it
    got, and how much is not known. Raises TypeError for other arguments, UsageError
    for limits that are not for `source`, InputError for a file that cannot be read.
    """
    if not isinstance(limits, Limits):
        raise expected("Limits", limits)
    source, base = as_trace_or_plan(source), None
    if limits.baseline is not None:
        base = as_trace_or_plan(limits.baseline)
        if isinstance(source, Plan) != isinstance(base, Plan):
            raise UsageError(
                "a plan's arena is without what is persistent, a trace's is with it; "
                "give a trace a trace as its baseline, and a plan a plan"
            )
    return _verdict(source, base, limits)


def _verdict(
    source: Trace | Plan, base: Trace | Plan | None, limits: Limits
) -> Verdict:
    stats = None if isinstance(source, Plan) else summarize(source)
    what, value = _value(source, stats, limits.of)
    bounds = []
    if limits.most is not None:
        bounds.append((limits.most, format_bytes(limits.most), False))
    if base is not None:
        before = _value(base, None, limits.of)[1]
        allowed = before + int(before * limits.tolerance)
        name = f"the baseline's {format_bytes(before)}"
        if limits.tolerance:
            name += f" and {100 * limits.tolerance:.3g} % of it"
        bounds.append((allowed, name, True))
    least = min((bound[0] for bound in bounds), default=None)
    if stats is not None and stats.oom is not None:
        return _failed(stats.oom, least)
    for limit, name, against_base in bounds:
        if value > limit:
            site = _site(source, stats, base if against_base else None)
            most = "most of it" if against_base else "most"
            message = _above(what, value, limit, name) + _where(most, site)
            return Verdict(False, message, value, limit, site)
    for name, broken in (("no_leak", _leak), ("no_cycles", _cycles)):
        if not getattr(limits, name):
            continue
        message, site = broken(_with_history(stats, name)) or ("", None)
        if message:
            return Verdict(False, message, value, least, site)
    text = f"{what} {format_bytes(value)}"
    if least is not None:
        text += f", limit {format_bytes(least)}"
    if isinstance(source, Trace) and not (
        source.info.complete and not source.info.dropped_events
    ):
        text += "; as far as it was recorded, which is not to the end"
    return Verdict(True, text, value, least, None)


def _with_history(stats: Stats | None, name: str) -> Stats:
    """`stats`. Raises UsageError where the limit `name` cannot be held against it."""
    if stats is None:
        text = f"{name}=True needs a trace: a plan has one step only"
        raise UsageError(text, shell=as_options(text))
    if not stats.trace.info.history:
        text = f"{name}=True needs a history: {NO_HISTORY}"
        raise UsageError(text, shell=as_options(text))
    return stats


def _cycles(stats: Stats) -> tuple[str, Site] | None:
    """What the cycle collector freed, if it is not little, and who made most of it."""
    cycles = stats.cycles
    if cycles is None or not has_cycles(stats):
        return None
    most = cycles.shares[0]
    text = (
        f"{format_bytes(cycles.bytes)} were freed by Python's cycle collector alone"
        f"{_where('most of it made', most.site)}"
    )
    if most.cycle:
        text += f"; kept by {most.cycle}"
    if most.place:
        text += f", closed at {most.place}"
    return text, most.site


def _failed(oom: OutOfMemory, limit: int | None) -> Verdict:
    live, asked = oom.live.bytes, oom.requested_bytes
    message = (
        f"a request for {format_bytes(asked)} failed while {format_bytes(live)} were "
        f"live{_where('asked for', oom.site)}"
    )
    return Verdict(False, message, live + asked, limit, oom.site)


def _value(source: Trace | Plan, stats: Stats | None, of: Of) -> tuple[str, int]:
    if isinstance(source, Plan):
        if of == "reserved":
            text = 'of="reserved" needs a trace: a plan reserves its arena'
            raise UsageError(text, shell=as_options(text))
        return "planned arena", source.arena_bytes
    if of == "reserved":
        return "reserved", _reserved(source)
    if of == "live":
        what = "peak live" if source.info.history else "live"
        return what, (stats or summarize(source)).peak.bytes
    from memplan.solving.capacity import room_for
    from memplan.solving.solve import solve

    plan = solve(source, "bestfit")
    return "planned and persistent", room_for(source, 0, "live").needed(plan)


def _reserved(trace: Trace) -> int:
    """The most that was reserved. Raises UsageError where the trace does not tell."""
    if trace.info.device != "cuda":
        text = (
            'of="reserved" is for recordings of CUDA memory and snapshots: nothing is '
            'reserved on the CPU; leave it out, or record with device="fake:cuda"'
        )
        raise UsageError(text, shell=as_options(text))
    most = most_reserved(trace.events)
    if not most:
        text = 'of="reserved": this recording tells of no segments'
        raise UsageError(text, shell=as_options(text))
    return most


def _above(what: str, value: int, limit: int, name: str) -> str:
    over = value - limit
    share = f", {100 * over / limit:.1f} %," if limit else ""
    return f"{what} {format_bytes(value)} is {format_bytes(over)}{share} above {name}"


def _site(
    source: Trace | Plan, stats: Stats | None, baseline: Trace | Plan | None
) -> Site | None:
    """Whom to name: what grew most since the baseline, or else what holds most."""
    if isinstance(source, Plan) or stats is None or not stats.has_sites:
        return None
    if isinstance(baseline, Trace):
        grown = [c for c in diff(baseline, source).sites if c.delta > 0]
        if grown:
            return grown[0].site
    return stats.peak.by("line")[0].site


def _where(what: str, site: Site | None) -> str:
    return f"; {what} at {described(site)}" if site is not None and site.file else ""


def described(site: Site) -> str:
    """ "file:line in function (module, operator)", as far as it is known."""
    more = ", ".join(filter(None, (site.module, site.operator)))
    text = site.place + (f" in {site.function}" if site.function else "")
    return f"{text} ({more})" if more else text


def _leak(stats: Stats) -> tuple[str, Site] | None:
    """By how much memory grows, and who made most of that."""
    leak = stats.leak
    if leak is None:
        return None
    text = (
        f"memory grows by {format_bytes(round(leak.bytes_per_step))} a step, over "
        f"{leak.steps} steps{_where('most of it made', leak.site)}"
    )
    if leak.holder is not None:
        text += f"; held by {leak.holder.text}"
    return text, leak.site
