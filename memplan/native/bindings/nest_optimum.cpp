// Python's view of the loop-nest kernels, and of the searches for the least-energy nest:
// arrays in, arrays out, the GIL released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "nest/optimum.h"
#include "nest/whole_search.h"
#include "require.h"
#include "stop_sign.h"

namespace nb = nanobind;
namespace nest = memplan::nest::optimum;
namespace whole = memplan::nest::whole;
using memplan::require;
using memplan::StopSign;
using nb::literals::operator""_a;

namespace {

using Knots = std::vector<std::pair<double, double>>;
// (bytes, pJ) knots; bytes of the largest; pool; whether these slide; (bytes, pJ, pool,
// whether it slides) levels; pJ outside; knots of an outermost one.
using MemoriesTuple =
    std::tuple<Knots, double, int, bool,
               std::vector<std::tuple<double, double, int, bool>>, double, Knots>;

bool positive(double value) { return value > 0 && std::isfinite(value); }

std::vector<nest::Knot> knots_from(const Knots& given) {
  std::vector<nest::Knot> knots;
  for (const auto& [bytes, pj] : given) {
    require(positive(bytes) && positive(pj), "need knots above 0");
    require(knots.empty() || knots.back().bytes < bytes, "need ascending knots");
    knots.push_back({bytes, pj});
  }
  return knots;
}

nest::Memories memories_from(const MemoriesTuple& given, std::size_t pools) {
  const auto& [knots, largest, pool, slides, levels, main_pj, last] = given;
  const auto known = [&](int p) { return -1 <= p && p < static_cast<int>(pools); };
  nest::Memories memories;
  memories.knots = knots_from(knots);
  memories.last = knots_from(last);
  require(!knots.empty() || last.empty(), "knots of an outermost memory need others");
  for (const auto& [bytes, pj, taken, slide] : levels) {
    require(positive(bytes) && positive(pj), "need levels above 0");
    require(known(taken), "a level's pool is missing");
    memories.levels.push_back({bytes, pj, taken, slide});
  }
  require(known(pool), "a pool is missing");
  require(positive(main_pj), "need main_pj > 0");
  memories.largest = largest;
  memories.pool = pool;
  memories.slides = slides;
  memories.main_pj = main_pj;
  return memories;
}

nest::Layer layer_from(const std::array<std::int64_t, 5>& extent,
                       const std::array<std::int64_t, 5>& base,
                       const std::array<std::int64_t, 2>& window,
                       const std::array<std::int64_t, 2>& base_window,
                       const std::array<std::int64_t, 2>& stride, bool kernel) {
  constexpr std::int64_t most = std::int64_t{1} << 40;
  const auto covers = [](std::int64_t all, std::int64_t part) {
    return 0 < part && part <= all && all < most;
  };
  for (int dim = 0; dim < nest::kDims; ++dim) {
    require(covers(extent[dim], base[dim]), "need extents that hold base");
  }
  for (int i = 0; i < 2; ++i) {
    require(covers(window[i], base_window[i]), "need windows that hold base_window");
    require(stride[i] > 0, "need stride > 0");
  }
  return {extent, base, window, base_window, stride, kernel};
}

void make_problem(nest::Problem* self, const std::array<std::int64_t, 5>& extent,
                  const std::array<std::int64_t, 5>& base,
                  const std::array<std::int64_t, 2>& window,
                  const std::array<std::int64_t, 2>& base_window,
                  const std::array<std::int64_t, 2>& stride, bool kernel,
                  const std::array<MemoriesTuple, 3>& memories,
                  const std::vector<double>& pools,
                  const std::array<double, 3>& element_bytes, double last_write,
                  bool count_fills) {
  nest::Problem problem;
  problem.layer = layer_from(extent, base, window, base_window, stride, kernel);
  require(pools.size() <= nest::kMostPools, "need fewer pools");
  for (const double bytes : pools) require(positive(bytes), "need pools above 0");
  for (int t = 0; t < nest::kTensors; ++t) {
    problem.memories[t] = memories_from(memories[t], pools.size());
  }
  problem.pools = pools;
  for (const double bytes : element_bytes) {
    require(positive(bytes), "need element_bytes > 0");
  }
  require(positive(last_write), "need last_write > 0");
  problem.last_write = last_write;
  problem.element_bytes = element_bytes;
  problem.count_fills = count_fills;
  new (self) nest::Problem(std::move(problem));
}

// What a search found, and whether Ctrl-C ended it.
template <class Found>
struct Ended {
  Found found;
  bool interrupted = false;
};

// Calls search(stop) without the interpreter, and `report`, if it is callable, now and
// then. Ctrl-C ends the search; what else a signal's handler or `report` raises is
// raised here.
template <class Search>
auto until(double seconds, const nb::object& report, const Search& search) {
  const auto raises = [&] {
    if (PyErr_CheckSignals() != 0) return true;
    if (report.is_none()) return false;
    PyObject* answer = PyObject_CallNoArgs(report.ptr());
    Py_XDECREF(answer);
    return answer == nullptr;
  };
  bool raised = false;
  Ended<decltype(search(std::function<bool()>()))> ended;
  {
    nb::gil_scoped_release released;
    const StopSign stop(seconds, [&] {
      nb::gil_scoped_acquire held;
      return raised = raises();
    });
    ended.found = search([&] { return stop.up(); });
  }
  if (raised) {
    if (!PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) throw nb::python_error();
    PyErr_Clear();
    ended.interrupted = true;
  }
  return ended;
}

using EndedOptimum = Ended<nest::Optimum>;

EndedOptimum optimum(nest::Problem problem, bool whole, double incumbent,
                     double seconds, int threads, const nb::object& report) {
  problem.space = whole ? nest::Space::kWhole : nest::Space::kDivisors;
  require(incumbent > 0, "need incumbent > 0");
  for (int dim = 0; dim < nest::kDims; ++dim) {
    require(whole || problem.layer.extent[dim] % problem.layer.base[dim] == 0,
            "need extents that base divides");
  }
  return until(seconds, report, [&](const std::function<bool()>& stop) {
    return nest::find_optimum(problem, incumbent, std::clamp(threads, 1, 1024), stop);
  });
}

using LoopTuples = std::vector<std::pair<int, std::int64_t>>;

LoopTuples tuples(const std::vector<nest::Loop>& loops) {
  LoopTuples found;
  for (const auto& [dim, extent] : loops) found.emplace_back(dim, extent);
  return found;
}

// (loops, nests tried, whether it came to its end, whether Ctrl-C ended it).
std::tuple<LoopTuples, std::int64_t, bool, bool> improved(
    const nest::Problem& problem, const std::vector<LoopTuples>& given, double bound,
    int rounds, double seconds, int threads, const nb::object& report, int first) {
  std::vector<whole::Nest> starts;
  for (const LoopTuples& loops : given) {
    whole::Nest& start = starts.emplace_back();
    for (const auto& [dim, extent] : loops) start.push_back({dim, extent});
  }
  const auto search = [&](const std::function<bool()>& stop) {
    return whole::find_nest(problem, starts, bound, first, rounds,
                            std::clamp(threads, 1, 1024), stop);
  };
  const auto [found, interrupted] = until(seconds, report, search);
  return {tuples(found.loops), found.tried, found.complete, interrupted};
}

}  // namespace

void bind_cache(nb::module_& m);  // of nest_cache.cpp

NB_MODULE(_nest, m) {
  bind_cache(m);
  nb::class_<nest::Problem>(m, "Problem")
      .def("__init__", &make_problem, "extent"_a, "base"_a, "window"_a, "base_window"_a,
           "stride"_a, "kernel"_a, "memories"_a, "pools"_a, "element_bytes"_a,
           "last_write"_a, "count_fills"_a);
  nb::class_<EndedOptimum>(m, "Optimum")
      .def_prop_ro("energy", [](const EndedOptimum& self) { return self.found.energy; })
      .def_prop_ro("lower_bound",
                   [](const EndedOptimum& self) { return self.found.lower_bound; })
      .def_prop_ro("proved", [](const EndedOptimum& self) { return self.found.proved; })
      .def_prop_ro("labels", [](const EndedOptimum& self) { return self.found.labels; })
      .def_prop_ro("loops",
                   [](const EndedOptimum& self) { return tuples(self.found.loops); })
      .def_prop_ro("kept",
                   [](const EndedOptimum& self) {
                     std::vector<std::tuple<int, int, double, double, bool>> kept;
                     for (const auto& one : self.found.kept) {
                       kept.emplace_back(one.tensor, one.loop, one.elements, one.pj,
                                         one.slides);
                     }
                     return kept;
                   })
      .def_ro("interrupted", &EndedOptimum::interrupted);
  m.def("optimum", &optimum, "problem"_a, "whole"_a, "incumbent"_a, "seconds"_a,
        "threads"_a, "report"_a = nb::none());
  m.def("improved", &improved, "problem"_a, "starts"_a, "bound"_a, "rounds"_a,
        "seconds"_a, "threads"_a, "report"_a = nb::none(), "first"_a = 0);
}
