// A good loop nest in the whole space: any extents, and the window's loops anywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "nest/optimum_problem.h"

namespace memplan::nest::whole {

using Nest = std::vector<optimum::Loop>;  // innermost first, of X Y C K B Fw Fh

/// energy: pJ of one group; tried: nests whose energy was worked out; complete: unless
/// it was stopped.
struct Found {
  double energy = 0;
  Nest loops;
  std::int64_t tried = 0;
  bool complete = true;
};

/// The best nest that descents from `starts`, and annealing between them, come to; the
/// same one for the same arguments, on any number of threads, unless it is stopped.
///
/// starts: at least one; each covers the layer. bound: pJ that no nest takes less than;
/// what reaches it ends the search. rounds: of annealing, from each start; first: number
/// of the first, which seeds its random choices. Throws
/// std::invalid_argument where a start is no nest of the layer.
Found find_nest(const optimum::Problem& problem, const std::vector<Nest>& starts,
                double bound, int first, int rounds, int threads,
                const std::function<bool()>& stop);

}  // namespace memplan::nest::whole
