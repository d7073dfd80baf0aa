"""The paper's integer program (profile-guided memory optimization, equations 1 to 6).

Least u, such that for every buffer i, x_i + w_i <= u, and for every pair alive at the
same time, one lies below the other: x_i + w_i <= x_j + z_ij W and
x_j + w_j <= x_i + (1 - z_ij) W. To that are added, without losing the least u:

* W and the range of each x from the best heuristic peak; u not below the lower bound;
* sizes in units of their greatest common divisor;
* equal buffers stacked in the order of their indices;
* one pair's order chosen, since a packing turned upside down is a packing (not with
  fixed offsets, nor where alignments differ or sizes are padded).

Solvers count in floating point. Offsets are made anew in integers from the order that
the solver found, and are taken only if they are sound and better than those known.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan, Provenance
from memplan.core.problem import FREE, Problem
from memplan.core.verify import verify_offsets
from memplan.errors import EnvironmentUnfitError, NoPlanError, UsageError
from memplan.limits import MAX_TOTAL_BYTES
from memplan.solving import cbc
from memplan.solving.gapped import place_pieces
from memplan.solving.model import Model, build
from memplan.solving.options import DEFAULTS, Options, Progress
from memplan.solving.priorities import best_of_six
from memplan.solving.search import Search

_FIRST_ORDERS = 3_000  # tried at random before a solver is asked


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
        search.run(start)
        if search.done:
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
            lowest_first = np.argsort(plan.offsets, kind="stable").astype(np.int32)
            settled = place_pieces(problem, lowest_first)
            offsets = min(offsets, settled, key=problem.peak)
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
        return search.bound, f"heuristics alone: {error}"
    if model.floor > model.ceiling or model.floor >= search.peak:
        return model.floor, "buffers that all meet need that, no solver"
    if options.time_limit is not None:
        left = options.time_limit - (time.perf_counter() - start)
        if left <= 0:
            return search.bound, "no time was left for a solver"
        options = replace(options, time_limit=left)
    try:
        found = cbc.run(model, options)
    except EnvironmentUnfitError as error:
        return search.bound, f"heuristics alone, for there is no solver: {error}"
    if found.offsets is not None:
        offsets = restack(problem, model, found.offsets)
        if not verify_offsets(problem, offsets, MAX_TOTAL_BYTES):
            search.take(offsets)
    proved = max(proved_bytes(model, found), model.floor)
    bound = min(max(search.bound, proved), search.peak)
    return bound, f"{options.mip_solver}, {len(model.first):,} pairs: {found.status}"


def proved_bytes(model: Model, found: cbc.Found) -> int:
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


def restack(problem: Problem, model: Model, offsets: cbc.Offsets) -> Int64Array:
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
