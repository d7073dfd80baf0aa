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
#include <string>
#include <vector>

#include "bindings/dsa_arrays.h"
#include "dsa/exact.h"

namespace nb = nanobind;
namespace dsa = memplan::dsa;
using namespace memplan::bindings;
using nb::literals::operator""_a;

namespace {

using Column = In<std::int64_t>;

dsa::Instance instance_from(const Column& lower, const Column& upper,
                            const Column& size, const Column& alignment,
                            const Column& fixed, std::int64_t period,
                            const std::optional<Column>& beyond) {
  dsa::Instance instance{
      blocks_from(lower, upper, size, alignment, period), span_of(fixed), {}};
  if (beyond) instance.beyond = span_of(*beyond);
  const dsa::Blocks& blocks = instance.blocks;
  const std::size_t n = size.size();
  require(n > 0, "no blocks");
  require(n < (std::size_t{1} << 20), "2^20 blocks or more");
  require(fixed.size() == n && (!beyond || beyond->size() == n),
          "arrays differ in length");
  constexpr std::int64_t most = std::int64_t{1} << 43;  // as sort keys hold them
  for (std::size_t i = 0; i < n; ++i) {
    require(blocks.size[i] < most, "need size < 2^43");
    require(instance.fixed[i] >= -1 && instance.fixed[i] < most,
            "need -1 <= fixed < 2^43");
    require(
        !beyond || (0 <= instance.beyond[i] && instance.beyond[i] <= blocks.size[i]),
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
    const auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
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

  Out<std::int64_t> offsets() {
    require(verdict_ == dsa::Verdict::kFits, "no packing was found");
    return numpy_from(portfolio_.offsets());
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
