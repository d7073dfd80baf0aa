// Python's view of the cache simulator: counts out, the GIL released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <tuple>
#include <vector>

#include "nest/cache_conv.h"
#include "nest/cache_gemm.h"
#include "nest/cache_sim.h"

namespace nb = nanobind;
namespace nest = memplan::nest;
using nb::literals::operator""_a;

namespace {

using Triple = std::array<std::int64_t, 3>;
using Counts = std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>;

std::vector<nest::CacheGeometry> geometries(const std::vector<Triple>& levels) {
  std::vector<nest::CacheGeometry> found;
  for (const auto& [bytes, ways, line] : levels) found.push_back({bytes, ways, line});
  return found;
}

void check_signals() {
  const nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// A convolution's tensors in memory, as Python describes them.
class Tensors {
 public:
  Tensors(const nest::Extents& sizes, std::array<std::int64_t, 2> stride,
          std::int64_t element_bytes, std::array<std::int64_t, 2> input,
          std::array<std::int64_t, 2> output, std::array<std::int64_t, 2> tile)
      : tensors({sizes, stride[0], stride[1]},
                {element_bytes, input[0], input[1], output[0], output[1]},
                {tile[0], tile[1]}) {}

  nest::ConvTensors tensors;
};

// One run at a time, whichever threads ask for it.
class Simulator {
 public:
  explicit Simulator(const std::vector<Triple>& levels) : caches_(geometries(levels)) {}

  void blocked(const Tensors& of,
               const std::vector<std::tuple<int, std::int64_t>>& loops) {
    const nb::gil_scoped_release released;
    const std::scoped_lock one_at_a_time(mutex_);
    std::vector<nest::Loop> found;
    for (const auto& [dim, extent] : loops) found.push_back({dim, extent});
    nest::BlockedConv(of.tensors, found, caches_, poll_).run();
  }

  void gemm(const Tensors& of, const Triple& blocks) {
    const nb::gil_scoped_release released;
    const std::scoped_lock one_at_a_time(mutex_);
    const nest::Im2colGemm::Blocks given{blocks[0], blocks[1], blocks[2]};
    nest::Im2colGemm(of.tensors, given, caches_, poll_).run();
  }

  Counts counts() {
    const nb::gil_scoped_release released;
    const std::scoped_lock one_at_a_time(mutex_);
    Counts found;
    for (const nest::CacheLevel& level : caches_.levels())
      found.emplace_back(level.counts.accesses, level.counts.misses,
                         level.counts.writebacks);
    return found;
  }

 private:
  nest::CacheSim caches_;
  const std::function<void()> poll_ = check_signals;
  std::mutex mutex_;
};

}  // namespace

void bind_cache(nb::module_& m) {
  nb::class_<Tensors>(m, "ConvTensors")
      .def(nb::init<const nest::Extents&, std::array<std::int64_t, 2>, std::int64_t,
                    std::array<std::int64_t, 2>, std::array<std::int64_t, 2>,
                    std::array<std::int64_t, 2>>(),
           "sizes"_a, "stride"_a, "element_bytes"_a, "input"_a, "output"_a, "tile"_a);
  nb::class_<Simulator>(m, "CacheSim")
      .def(nb::init<const std::vector<Triple>&>(), "levels"_a)
      .def("blocked", &Simulator::blocked, "tensors"_a, "loops"_a)
      .def("gemm", &Simulator::gemm, "tensors"_a, "blocks"_a)
      .def("counts", &Simulator::counts);
}
