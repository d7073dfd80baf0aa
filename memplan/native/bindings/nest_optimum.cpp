// The search for the least-energy loop nest, as Python sees it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "nest/optimum.h"
#include "stop_sign.h"

namespace nb = nanobind;
namespace nest = memplan::nest::optimum;
using memplan::StopSign;
using nb::literals::operator""_a;

namespace {

// (bytes, pJ) knots; bytes of the largest; pool; (bytes, pJ, pool) levels; pJ outside.
using MemoriesTuple =
    std::tuple<std::vector<std::pair<double, double>>, double, int,
               std::vector<std::tuple<double, double, int>>, double>;

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

bool positive(double value) { return value > 0 && std::isfinite(value); }

nest::Memories memories_from(const MemoriesTuple& given, std::size_t pools) {
  const auto& [knots, largest, pool, levels, main_pj] = given;
  const auto known = [&](int p) { return -1 <= p && p < static_cast<int>(pools); };
  nest::Memories memories;
  for (const auto& [bytes, pj] : knots) {
    require(positive(bytes) && positive(pj), "need knots above 0");
    require(memories.knots.empty() || memories.knots.back().bytes < bytes,
            "need ascending knots");
    memories.knots.push_back({bytes, pj});
  }
  for (const auto& [bytes, pj, taken] : levels) {
    require(positive(bytes) && positive(pj), "need levels above 0");
    require(known(taken), "a level's pool is missing");
    memories.levels.push_back({bytes, pj, taken});
  }
  require(known(pool), "a pool is missing");
  require(positive(main_pj), "need main_pj > 0");
  memories.largest = largest;
  memories.pool = pool;
  memories.main_pj = main_pj;
  return memories;
}

nest::Layer layer_from(const std::array<std::int64_t, 5>& extent,
                       const std::array<std::int64_t, 5>& base,
                       const std::array<std::int64_t, 2>& window,
                       const std::array<std::int64_t, 2>& base_window,
                       const std::array<std::int64_t, 2>& stride, bool kernel,
                       bool whole) {
  constexpr std::int64_t most = std::int64_t{1} << 40;
  const auto covers = [&](std::int64_t all, std::int64_t part) {
    return 0 < part && part <= all && all < most && (whole || all % part == 0);
  };
  for (int dim = 0; dim < nest::kDims; ++dim) {
    require(covers(extent[dim], base[dim]), "need extents that base divides");
  }
  for (int i = 0; i < 2; ++i) {
    require(covers(window[i], base_window[i]), "need windows that base_window divides");
    require(stride[i] > 0, "need stride > 0");
  }
  return {extent, base, window, base_window, stride, kernel};
}

nest::Optimum optimum(const std::array<std::int64_t, 5>& extent,
                      const std::array<std::int64_t, 5>& base,
                      const std::array<std::int64_t, 2>& window,
                      const std::array<std::int64_t, 2>& base_window,
                      const std::array<std::int64_t, 2>& stride, bool kernel,
                      const std::array<MemoriesTuple, 3>& memories,
                      const std::vector<double>& pools, double element_bytes,
                      bool count_fills, bool whole, double incumbent, double seconds,
                      int threads) {
  nest::Problem problem;
  problem.layer =
      layer_from(extent, base, window, base_window, stride, kernel, whole);
  problem.space = whole ? nest::Space::kWhole : nest::Space::kDivisors;
  require(incumbent > 0, "need incumbent > 0");
  for (const double bytes : pools) require(positive(bytes), "need pools above 0");
  for (int t = 0; t < nest::kTensors; ++t) {
    problem.memories[t] = memories_from(memories[t], pools.size());
  }
  problem.pools = pools;
  require(positive(element_bytes), "need element_bytes > 0");
  problem.element_bytes = element_bytes;
  problem.count_fills = count_fills;
  using Clock = StopSign::Clock;
  const std::chrono::duration<double> wait(std::clamp(seconds, 0.0, 1e9));
  bool interrupted = false;
  nest::Optimum found;
  {
    nb::gil_scoped_release released;
    const StopSign stop(
        Clock::now() + std::chrono::duration_cast<Clock::duration>(wait), [&] {
          nb::gil_scoped_acquire held;
          interrupted = PyErr_CheckSignals() != 0;
          return interrupted;
        });
    found = nest::find_optimum(problem, incumbent, std::clamp(threads, 1, 1024),
                               [&] { return stop.up(); });
  }
  if (interrupted) throw nb::python_error();
  return found;
}

}  // namespace

void bind_optimum(nb::module_& m) {
  nb::class_<nest::Optimum>(m, "Optimum")
      .def_ro("energy", &nest::Optimum::energy)
      .def_ro("lower_bound", &nest::Optimum::lower_bound)
      .def_ro("proved", &nest::Optimum::proved)
      .def_ro("labels", &nest::Optimum::labels)
      .def_prop_ro("loops",
                   [](const nest::Optimum& found) {
                     std::vector<std::pair<int, std::int64_t>> loops;
                     for (const auto& [dim, extent] : found.loops) {
                       loops.emplace_back(dim, extent);
                     }
                     return loops;
                   })
      .def_prop_ro("kept", [](const nest::Optimum& found) {
        std::vector<std::tuple<int, int, double, double>> kept;
        for (const auto& [tensor, loop, elements, pj] : found.kept) {
          kept.emplace_back(tensor, loop, elements, pj);
        }
        return kept;
      });
  m.def("optimum", &optimum, "extent"_a, "base"_a, "window"_a, "base_window"_a,
        "stride"_a, "kernel"_a, "memories"_a, "pools"_a, "element_bytes"_a,
        "count_fills"_a, "whole"_a, "incumbent"_a, "seconds"_a, "threads"_a);
}
