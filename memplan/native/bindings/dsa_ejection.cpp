// Python's view of the search by ejection.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <vector>

#include "bindings/dsa_arrays.h"
#include "dsa/ejection.h"

namespace nb = nanobind;
namespace dsa = memplan::dsa;
using namespace memplan::bindings;
using nb::literals::operator""_a;

namespace {

// Lets one thread in at a time.
class Ejection {
 public:
  Ejection(const In<std::int64_t>& lower, const In<std::int64_t>& upper,
           const In<std::int64_t>& size, const In<std::int64_t>& offsets,
           std::uint64_t seed, const std::optional<In<std::int64_t>>& alignment,
           const std::optional<In<std::int64_t>>& fixed, std::int64_t period) {
    const dsa::Blocks blocks = blocks_from(lower, upper, size, alignment, period);
    const std::size_t n = blocks.size.size();
    require(n > 0, "there are no blocks");
    require(!fixed || fixed->size() == n, "arrays differ in length");
    alignment_.assign(blocks.alignment.begin(), blocks.alignment.end());
    fixed_.assign(n, -1);
    if (fixed) std::copy_n(fixed->data(), n, fixed_.begin());
    refuse_misplaced(offsets);
    const auto given = fixed ? span_of(*fixed) : std::span<const std::int64_t>{};
    nb::gil_scoped_release released;
    search_.emplace(blocks, given, span_of(offsets), seed);
  }

  void offer(const In<std::int64_t>& offsets) {
    refuse_misplaced(offsets);
    nb::gil_scoped_release released;
    const std::scoped_lock one_at_a_time(mutex_);
    search_->offer(span_of(offsets));
  }

  void advance(std::int64_t goal, std::int64_t placements, double seconds,
               double hard_seconds, int threads, std::int64_t work) {
    nb::gil_scoped_release released;
    const std::scoped_lock one_at_a_time(mutex_);
    search_->advance({goal, placements, seconds, hard_seconds, threads, work});
  }

  std::int64_t placed() const { return search_->placed(); }
  std::int64_t worked() const { return search_->worked(); }
  std::int64_t peak() const { return search_->peak(); }
  Out<std::int64_t> offsets() const { return numpy_from(search_->offsets()); }

 private:
  void refuse_misplaced(const In<std::int64_t>& offsets) const {
    require(offsets.size() == fixed_.size(), "arrays differ in length");
    for (std::size_t i = 0; i < fixed_.size(); ++i) {
      const std::int64_t offset = offsets.data()[i];
      require(offset >= 0, "an offset is negative");
      require(alignment_.empty() || offset % alignment_[i] == 0,
              "an offset is not aligned");
      require(fixed_[i] < 0 || fixed_[i] == offset, "a block is not where it is fixed");
    }
  }

  std::vector<std::int64_t> alignment_, fixed_;  // empty: 1; -1: free
  std::optional<dsa::Ejection> search_;
  std::mutex mutex_;
};

}  // namespace

void bind_ejection(nb::module_& m) {
  nb::class_<Ejection>(m, "Ejection")
      .def(nb::init<const In<std::int64_t>&, const In<std::int64_t>&,
                    const In<std::int64_t>&, const In<std::int64_t>&, std::uint64_t,
                    const std::optional<In<std::int64_t>>&,
                    const std::optional<In<std::int64_t>>&, std::int64_t>(),
           "lower"_a, "upper"_a, "size"_a, "offsets"_a, "seed"_a,
           "alignment"_a = nb::none(), "fixed"_a = nb::none(), "period"_a = 0)
      .def("offer", &Ejection::offer, "offsets"_a)
      .def("advance", &Ejection::advance, "goal"_a, "placements"_a, "seconds"_a,
           "hard_seconds"_a, "threads"_a, "work"_a = dsa::Ejection::kEndless)
      .def_prop_ro("placed", &Ejection::placed)
      .def_prop_ro("worked", &Ejection::worked)
      .def_prop_ro("peak", &Ejection::peak)
      .def_prop_ro("offsets", &Ejection::offsets, nb::rv_policy::move);
}
