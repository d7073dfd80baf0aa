// The exact search, as Python sees it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "dsa/exact.h"

namespace nb = nanobind;
namespace dsa = memplan::dsa;
using nb::literals::operator""_a;

namespace {

using Column = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig,
                           nb::device::cpu>;

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

dsa::Instance instance_from(const Column& lower, const Column& upper,
                            const Column& size, const Column& alignment,
                            const Column& fixed, std::int64_t period,
                            const std::optional<Column>& beyond) {
  const auto span_of = [&](const Column& column) {
    require(column.size() == size.size(), "arrays differ in length");
    return std::span<const std::int64_t>(column.data(), column.size());
  };
  const dsa::Instance instance{
      {span_of(lower), span_of(upper), span_of(size), span_of(alignment), period},
      span_of(fixed),
      beyond ? span_of(*beyond) : std::span<const std::int64_t>{}};
  const dsa::Blocks& blocks = instance.blocks;
  require(size.size() > 0, "no blocks");
  require(size.size() < (std::size_t{1} << 20), "2^20 blocks or more");
  require(period >= 0, "period is negative");
  constexpr std::int64_t most = std::int64_t{1} << 43;  // as sort keys hold them
  for (std::size_t i = 0; i < size.size(); ++i) {
    require(0 <= blocks.lower[i] && blocks.lower[i] < blocks.upper[i],
            "need 0 <= lower < upper");
    require(period == 0 || (blocks.lower[i] < period &&
                            blocks.upper[i] - blocks.lower[i] <= period),
            "need lower < period and upper - lower <= period");
    require(0 < blocks.size[i] && blocks.size[i] < most, "need 0 < size < 2^43");
    require(blocks.alignment[i] > 0, "need alignment > 0");
    require(instance.fixed[i] >= -1 && instance.fixed[i] < most,
            "need -1 <= fixed < 2^43");
    require(!beyond ||
                (0 <= instance.beyond[i] && instance.beyond[i] <= blocks.size[i]),
            "need 0 <= beyond <= size");
  }
  return instance;
}

// One call at a time, whichever threads make them.
class ExactSearch {
 public:
  ExactSearch(const Column& lower, const Column& upper, const Column& size,
              const Column& alignment, const Column& fixed, std::int64_t capacity,
              const std::vector<std::string>& orders, std::int64_t period,
              const std::optional<Column>& beyond)
      : portfolio_([&] {
          require(!orders.empty(), "no orders");
          require(0 <= capacity && capacity < (std::int64_t{1} << 43),
                  "need 0 <= capacity < 2^43");
          const auto instance =
              instance_from(lower, upper, size, alignment, fixed, period, beyond);
          nb::gil_scoped_release released;
          return dsa::Portfolio(instance, orders, capacity);
        }()) {}

  const char* run(std::int64_t rounds, std::int64_t slice, int threads,
                  double seconds) {
    using Clock = memplan::StopSign::Clock;
    seconds = std::clamp(seconds, 0.0, 1e9);
    const auto wait = std::chrono::duration<double>(seconds);
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
    bool interrupted = false;
    {
      nb::gil_scoped_release released;
      const std::scoped_lock one_at_a_time(mutex_);
      const memplan::StopSign stop(deadline, [&] {
        nb::gil_scoped_acquire held;
        interrupted = PyErr_CheckSignals() != 0;
        return interrupted;
      });
      verdict_ = portfolio_.run(rounds, slice, threads, stop);
    }
    if (interrupted) throw nb::python_error();
    if (verdict_ == dsa::Verdict::kOpen) return "open";
    return verdict_ == dsa::Verdict::kFits ? "fits" : "never";
  }

  nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>> offsets() {
    require(verdict_ == dsa::Verdict::kFits, "no packing was found");
    auto* kept = new std::vector<std::int64_t>(portfolio_.offsets());
    nb::capsule owner(kept, [](void* p) noexcept {
      delete static_cast<std::vector<std::int64_t>*>(p);
    });
    return {kept->data(), {kept->size()}, owner};
  }

  std::int64_t nodes() const { return portfolio_.nodes(); }

 private:
  dsa::Portfolio portfolio_;
  dsa::Verdict verdict_ = dsa::Verdict::kOpen;
  std::mutex mutex_;
};

}  // namespace

void bind_exact(nb::module_& m) {
  nb::class_<ExactSearch>(m, "ExactSearch")
      .def(nb::init<const Column&, const Column&, const Column&, const Column&,
                    const Column&, std::int64_t, const std::vector<std::string>&,
                    std::int64_t, const std::optional<Column>&>(),
           "lower"_a, "upper"_a, "size"_a, "alignment"_a, "fixed"_a, "capacity"_a,
           "orders"_a, "period"_a = 0, "beyond"_a = nb::none())
      .def("run", &ExactSearch::run, "rounds"_a, "placements"_a, "threads"_a,
           "seconds"_a)
      .def("offsets", &ExactSearch::offsets)
      .def_prop_ro("nodes", &ExactSearch::nodes);
}
