// The loop nest of least energy: any depth, every chain of divisors, any order.
#pragma once

#include <functional>

#include "nest/optimum_problem.h"

namespace memplan::nest::optimum {

/// Searches until the optimum is proved, or `stop`, which any thread may call, returns
/// true, or labels would take more than about 2 GiB. Then the best nest so far comes
/// back, with a bound below all others; its energy is infinite if there is none yet.
///
/// In the whole space the energy is what a nest takes at least that has these loops,
/// and so is the bound: not more than any nest takes. incumbent: energy that is known to
/// be reached; nests that are no better are not looked for, and where there are none,
/// it comes back as energy and bound, without loops.
///
/// threads: at least 1. Throws std::overflow_error where the layer has too many tiles,
/// std::invalid_argument where there are more than four pools.
Optimum find_optimum(const Problem& problem, double incumbent, int threads,
                     const std::function<bool()>& stop);

}  // namespace memplan::nest::optimum
