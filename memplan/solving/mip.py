"""The paper's integer program (profile-guided memory optimization, equations 1 to 6).

Least u, such that for every buffer i, x_i + w_i <= u, and for every pair alive at the
same time, one lies below the other: x_i + w_i <= x_j + z_ij W and
x_j + w_j <= x_i + (1 - z_ij) W. Additions that keep the least u:

* W and the range of each x from the best heuristic peak; u at least the lower bound;
* sizes in units of their greatest common divisor;
* equal buffers stacked in the order of their indices;
* one pair's order chosen, since a packing turned upside down is a packing (not with
  fixed offsets, nor where alignments differ or sizes are padded).

The program counts offsets and padded sizes in units of bytes: the greatest common
divisor of all that matters, since big integers ruin the tolerances of solvers. The peak
is counted in the same units, but need not be a whole number: the topmost buffer needs
no padding.

Solvers compute in floating point. Offsets are recomputed in integers from the order
that the solver found, and are used only if they are valid and better than the best so
far.
"""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np

from memplan.arrays import Float64Array, Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan, Provenance
from memplan.core.problem import FREE, Problem
from memplan.core.verify import verify_offsets
from memplan.errors import EnvironmentUnfitError, NoPlanError, UsageError, as_options
from memplan.limits import MAX_TOTAL_BYTES
from memplan.solving import offsets_program
from memplan.solving.anytime import Search
from memplan.solving.bestfit import best_of_six, settle
from memplan.solving.offsets_program import Found, Model
from memplan.solving.options import DEFAULTS, Options, Progress
from memplan.solving.placing import lifetimes, spans

_FIRST_ORDERS = 3_000  # tried at random before a solver is asked
_BYTES_PER_PAIR = 16_000  # of the model, its file and the solver: measured, doubled
_FALLBACK_MEMORY = 2 << 30


def solve(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The best Plan, with the solver's bound; heuristics that reach it come first.

    Takes one thread unless told to take more. Ctrl-C ends it with the best so far. The
    heuristics' plan is kept, and the note says why, where there are more pairs than
    memory allows, or the solver is not there, fails, or is not done in time.

    Gaps in lifespans are used by the heuristics, and no more: there is no program for
    them, and no proof but the lower bound's.

    Raises NoPlanError where fixed offsets collide.
    """
    if problem.gaps is not None:
        return _without_gaps(problem, options)
    start = time.perf_counter()
    offsets, _ = best_of_six(problem, options)
    search = Search(problem, replace(options, iterations=_FIRST_ORDERS), offsets)
    bound, note = search.bound, ""
    try:
        search.seek(search.goal, start)
        if search.peak <= search.goal:
            note = "heuristics were enough, no solver was asked"
        else:
            bound, note = _ask_solver(problem, options, search, start)
    except KeyboardInterrupt:
        note = "interrupted"
    made = Provenance("mip", options.seed, note=note)
    return Plan.of(problem, search.offsets, made, bound=bound)


def _without_gaps(problem: Problem, options: Options) -> Plan:
    """The best of the heuristics' plan, which uses the gaps, and the program's, which
    does not until its buffers are let down into them."""
    start = time.perf_counter()
    offsets, _ = best_of_six(problem, options)
    note = "heuristics were enough, no solver was asked"
    if problem.peak(offsets) > max(lower_bound(problem), options.capacity or 0):
        if options.time_limit is not None:
            spent = time.perf_counter() - start
            options = replace(options, time_limit=max(0.0, options.time_limit - spent))
        try:
            plan = solve(replace(problem, gaps=None), options)
        except NoPlanError:  # fixed buffers that lie in each other's gaps
            note = "heuristics alone: fixed buffers need the gaps"
        else:
            offsets = min(offsets, settle(problem, plan.offsets), key=problem.peak)
            note = f"as if there were no gaps: {plan.provenance.note}"
    return Plan.of(problem, offsets, Provenance("mip", options.seed, note=note))


def _ask_solver(
    problem: Problem, options: Options, search: Search, start: float
) -> tuple[int, str]:
    """Better offsets go to `search`; a lower bound in bytes, and what happened."""
    seconds = time.perf_counter() - start
    options.report(Progress(search.peak, search.bound, 0, seconds))
    try:
        model = build(problem, search.offsets, search.bound, options.capacity)
    except UsageError as error:
        return search.bound, f"heuristics alone: {error.shell}"
    if model.floor > model.ceiling or model.floor >= search.peak:
        return model.floor, "buffers that all meet need that, no solver"
    if options.time_limit is not None:
        left = options.time_limit - (time.perf_counter() - start)
        if left <= 0:
            return search.bound, "no time was left for a solver"
        options = replace(options, time_limit=left)
    try:
        found = offsets_program.run(model, options)
    except EnvironmentUnfitError as error:
        return search.bound, f"heuristics alone, for there is no solver: {error.shell}"
    if found.offsets is not None:
        offsets = restack(problem, model, found.offsets)
        if not verify_offsets(problem, offsets, MAX_TOTAL_BYTES):
            search.take(offsets)
    proved = max(proved_bytes(model, found), model.floor)
    bound = min(max(search.bound, proved), search.peak)
    return bound, f"{options.mip_solver}, {len(model.first):,} pairs: {found.status}"


def proved_bytes(model: Model, found: Found) -> int:
    """What the solver says no plan can do with less than, in bytes; 0 if nothing."""
    if found.infeasible:
        return model.ceiling + 1
    if found.bound is None or not math.isfinite(found.bound):
        return 0
    # Every peak is a multiple of the grain. What a solver says is in units, and not
    # quite exact.
    error = max(1e-4, 1e-8 * abs(found.bound))
    grains = (found.bound - error) * (model.unit // model.grain)
    return max(0, math.ceil(grains)) * model.grain


def restack(problem: Problem, model: Model, offsets: Float64Array) -> Int64Array:
    """Sound offsets in bytes, shape (n,), in the order of the solver's.

    From the lowest up, each free buffer goes as low as those before it allow.
    """
    size, alignment = problem.padded, problem.alignment
    exact: Int64Array = problem.fixed.copy()
    neighbours: list[list[int]] = [[] for _ in range(len(problem))]
    for i, j in zip(model.first.tolist(), model.second.tolist(), strict=True):
        neighbours[i].append(j)
        neighbours[j].append(i)
    done = np.zeros(len(problem), dtype=np.bool_)
    for i in np.argsort(offsets, kind="stable").tolist():
        if problem.fixed[i] == FREE:
            below = [j for j in neighbours[i] if done[j]]
            top = int((exact[below] + size[below]).max(initial=0))
            exact[i] = -(-top // int(alignment[i])) * int(alignment[i])
        done[i] = True
    return exact


def build(
    problem: Problem, offsets: Int64Array, bound: int, capacity: int | None = None
) -> Model:
    """The integer program, to be started from `offsets`.

    bound: bytes no plan can do with less than. Nothing above the offsets' peak is
    looked for, nor above the capacity (bytes) if that is lower.

    Raises UsageError for more pairs than memory allows.
    """
    unit = _unit(problem)
    mixed = bool((problem.alignment != problem.granularity).any())
    size = problem.padded // unit
    fixed = np.where(problem.fixed == FREE, FREE, problem.fixed // unit)
    start: Int64Array | None = offsets // unit
    ceiling = problem.peak(offsets)
    if capacity is not None and capacity < ceiling:
        ceiling, start = capacity, None
    first, second = pairs(problem)
    if problem.length is not None:
        bound = max(bound, clique_bytes(problem, first, second))
    twins = _twins(problem)
    settled = twins[first] == twins[second]
    if not mixed and (fixed == FREE).all() and not problem.slack.any():
        pinned = _pair_to_pin(size, first, second, twins)
        if pinned is not None:
            settled[pinned] = True
            if start is not None and start[first[pinned]] > start[second[pinned]]:
                # The same, turned upside down.
                start = ceiling // unit - start - size
    if start is not None:
        start = _twins_in_order(start, twins)
    return Model(
        size=size,
        slack=problem.slack,
        step=problem.alignment // unit if mixed else None,
        fixed=fixed,
        first=first,
        second=second,
        settled=settled,
        floor=bound,
        ceiling=ceiling,
        unit=unit,
        grain=int(np.gcd.reduce(np.append(problem.slack, unit))),
        start=start,
    )


def pairs(problem: Problem) -> tuple[Int64Array, Int64Array]:
    """Indices of all pairs that are alive at the same time, the lower one first.

    Pairs that are both fixed are left out. Raises UsageError for too many.
    """
    limit = most_pairs()
    count = _count_pairs(problem)
    if count > limit:
        text = (
            f"{len(problem):,} buffers make {count:,} pairs, and the memory of this "
            f"machine is enough for an integer program of {limit:,}; take "
            'method="auto", search or exact'
        )
        raise UsageError(text, shell=as_options(text))
    start, _ = spans(problem)
    life = lifetimes(problem)
    free = problem.fixed == FREE
    seconds = []
    for i in range(len(problem)):
        later = start[i + 1 :] - start[i]
        if problem.length is None:
            meet = (later < life[i]) & (-later < life[i + 1 :])
        else:
            meet = np.mod(later, problem.length) < life[i]
            meet |= np.mod(-later, problem.length) < life[i + 1 :]
        meet &= free[i] | free[i + 1 :]
        seconds.append(np.flatnonzero(meet) + i + 1)
    if not seconds:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    first = np.repeat(np.arange(len(problem)), [len(found) for found in seconds])
    return first.astype(np.int64), np.concatenate(seconds).astype(np.int64)


def clique_bytes(problem: Problem, first: Int64Array, second: Int64Array) -> int:
    """Bytes that a large set of buffers that all meet each other needs: padded ones,
    but for the topmost's.

    On a circle they need not all be alive at one moment to need room side by side, and
    solvers are slow to find that out. A greedy choice from each buffer on.
    """
    n = len(problem)
    meet = np.zeros((n, n), dtype=np.bool_)
    meet[first, second] = meet[second, first] = True
    largest = np.argsort(-problem.padded, kind="stable")
    best = 0
    for seed in range(n):
        # Those met by all chosen so far, the largest first.
        candidates, total = meet[seed].copy(), int(problem.padded[seed])
        spare = int(problem.slack[seed])
        for other in largest:
            if candidates[other]:
                total += int(problem.padded[other])
                spare = max(spare, int(problem.slack[other]))
                candidates &= meet[other]
        best = max(best, total - spare)
    return best


def most_pairs() -> int:
    """How many pairs fit into the memory that is free now."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        free = _FALLBACK_MEMORY
    return free // _BYTES_PER_PAIR


def _count_pairs(problem: Problem) -> int:
    """Pairs alive at the same time; on a circle some may be counted twice."""
    start, end = spans(problem)
    births = np.sort(start)
    inside = np.searchsorted(births, end) - np.searchsorted(births, start)
    count = int(inside.sum()) - len(problem)
    if problem.length is not None:
        count += int(np.searchsorted(births, end - problem.length).sum())
        return count
    # Of those born at the same tick, each was counted by the other.
    _, together = np.unique(start, return_counts=True)
    return count - int((together * (together - 1) // 2).sum())


def _unit(problem: Problem) -> int:
    """Bytes that offsets in some best packing, and padded sizes, are multiples of."""
    parts = [problem.padded, problem.fixed[problem.fixed != FREE]]
    if (problem.alignment != problem.granularity).any():
        parts.append(problem.alignment)
    return int(np.gcd.reduce(np.concatenate(parts)))


def _twins(problem: Problem) -> Int64Array:
    """A number for each buffer, the same for those that could change places."""
    numbers: dict[tuple[int, ...], int] = {}
    rows = np.stack(
        [problem.lower, problem.upper, problem.size, problem.alignment], axis=1
    )
    found = []
    for i, row in enumerate(rows.tolist()):
        alone = problem.fixed[i] != FREE
        key = (i,) if alone else tuple(row)
        found.append(numbers.setdefault(key, len(numbers)))
    return np.array(found, dtype=np.int64)


def _pair_to_pin(
    size: Int64Array, first: Int64Array, second: Int64Array, twins: Int64Array
) -> int | None:
    """The largest pair without twins: those are in order already."""
    alone = np.bincount(twins)[twins] == 1
    good = np.flatnonzero(alone[first] & alone[second])
    if not len(good):
        return None
    return int(good[np.argmax(size[first[good]] + size[second[good]])])


def _twins_in_order(start: Int64Array, twins: Int64Array) -> Int64Array:
    members = defaultdict(list)
    for i, number in enumerate(twins.tolist()):
        members[number].append(i)
    start = start.copy()
    for same in members.values():
        start[same] = np.sort(start[same])
    return start
