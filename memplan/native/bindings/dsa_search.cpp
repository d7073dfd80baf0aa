// Python's view of the randomised search.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "bindings/dsa_arrays.h"
#include "dsa/search.h"

namespace nb = nanobind;
namespace dsa = memplan::dsa;
using namespace memplan::bindings;
using nb::literals::operator""_a;

namespace {

using Rows = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::vector<std::int64_t> copied(const In<std::int64_t>& array) {
  return {array.data(), array.data() + array.size()};
}

// Keeps the blocks that the search looks at, and lets one thread in at a time.
class Search {
 public:
  Search(const In<std::int64_t>& lower, const In<std::int64_t>& upper,
         const In<std::int64_t>& size, const Rows& classic, std::uint64_t seed,
         const std::optional<In<std::int64_t>>& alignment,
         const std::optional<In<std::int64_t>>& fixed, std::int64_t period,
         const std::optional<In<std::int64_t>>& taken,
         const std::optional<Table>& pieces)
      : lower_(copied(lower)), upper_(copied(upper)), size_(copied(size)) {
    dsa::Blocks blocks = blocks_from(lower, upper, size, alignment, period);
    const std::size_t n = size_.size();
    require(classic.shape(0) > 0 && classic.shape(1) == n,
            "need rows of priorities, one for each block");
    require(!fixed || fixed->size() == n, "arrays differ in length");
    if (alignment) alignment_ = copied(*alignment);
    if (fixed) fixed_ = copied(*fixed);
    require(!taken || taken->size() == n, "arrays differ in length");
    if (taken) taken_ = copied(*taken);
    for (std::size_t i = 0; i < taken_.size(); ++i) {
      require(0 < taken_[i] && taken_[i] <= size_[i], "need 0 < taken <= size");
    }
    blocks.lower = lower_;
    blocks.upper = upper_;
    blocks.size = size_;
    blocks.alignment = alignment_;
    blocks.taken = taken_;
    std::vector<std::vector<double>> rows;
    for (std::size_t k = 0; k < classic.shape(0); ++k) {
      const double* row = classic.data() + k * n;
      for (std::size_t i = 0; i < n; ++i) {
        require(std::isfinite(row[i]), "a priority is not finite");
      }
      rows.emplace_back(row, row + n);
    }
    std::optional<dsa::Pieces> used;
    if (pieces) used = pieces_from(*pieces, blocks);
    nb::gil_scoped_release released;
    search_.emplace(blocks, fixed_, std::move(rows), seed, used);
  }

  void advance(std::int64_t goal, std::int64_t orders, double seconds,
               double hard_seconds, int threads, std::int64_t below) {
    nb::gil_scoped_release released;
    const std::scoped_lock one_at_a_time(mutex_);
    search_->advance({goal, orders, seconds, hard_seconds, threads, below});
  }

  std::int64_t packed() const { return search_->packed(); }

  std::optional<std::int64_t> peak() const {
    const std::int64_t peak = search_->best().peak;
    if (peak == std::numeric_limits<std::int64_t>::max()) return std::nullopt;
    return peak;
  }

  Out<std::int64_t> offsets() const {
    return numpy_from(std::vector<std::int64_t>(search_->best().offsets));
  }

 private:
  std::vector<std::int64_t> lower_, upper_, size_, alignment_, fixed_, taken_;
  std::optional<dsa::Search> search_;
  std::mutex mutex_;
};

}  // namespace

void bind_search(nb::module_& m) {
  nb::class_<Search>(m, "Search")
      .def(
          nb::init<
              const In<std::int64_t>&, const In<std::int64_t>&, const In<std::int64_t>&,
              const Rows&, std::uint64_t, const std::optional<In<std::int64_t>>&,
              const std::optional<In<std::int64_t>>&, std::int64_t,
              const std::optional<In<std::int64_t>>&, const std::optional<Table>&>(),
          "lower"_a, "upper"_a, "size"_a, "classic"_a, "seed"_a,
          "alignment"_a = nb::none(), "fixed"_a = nb::none(), "period"_a = 0,
          "taken"_a = nb::none(), "pieces"_a = nb::none())
      .def("advance", &Search::advance, "goal"_a, "orders"_a, "seconds"_a,
           "hard_seconds"_a, "threads"_a,
           "below"_a = std::numeric_limits<std::int64_t>::max())
      .def_prop_ro("packed", &Search::packed)
      .def_prop_ro("peak", &Search::peak)
      .def_prop_ro("offsets", &Search::offsets, nb::rv_policy::move);
}
