// Python's view of the solver kernels: arrays in, arrays out, the GIL released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "dsa/bestfit.h"
#include "dsa/ejection.h"
#include "dsa/exact.h"
#include "dsa/gaps.h"
#include "dsa/packers.h"
#include "dsa/search.h"
#include "require.h"

namespace nb = nanobind;
namespace dsa = memplan::dsa;
using nb::literals::operator""_a;

namespace {

using memplan::In;
using memplan::numpy_from;
using memplan::Out;
using memplan::require;
using memplan::span_of;
using Ints = In<std::int64_t>;

dsa::Blocks blocks_from(const Ints& lower, const Ints& upper, const Ints& size,
                        const std::optional<Ints>& alignment, std::int64_t period) {
  dsa::Blocks blocks{span_of(lower), span_of(upper), span_of(size), {}, period};
  if (alignment) blocks.alignment = span_of(*alignment);
  const std::size_t n = blocks.size.size();
  require(blocks.lower.size() == n && blocks.upper.size() == n &&
              (!alignment || blocks.alignment.size() == n),
          "arrays differ in length");
  require(period >= 0, "period is negative");
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t lower_i = blocks.lower[i], upper_i = blocks.upper[i];
    require(0 <= lower_i && lower_i < upper_i, "need 0 <= lower < upper");
    require(period == 0 || (lower_i < period && upper_i - lower_i <= period),
            "need lower < period and upper - lower <= period");
    require(blocks.size[i] > 0, "need size > 0");
    require(!alignment || blocks.alignment[i] > 0, "need alignment > 0");
  }
  return blocks;
}

// The rows of a table: owner, lower, upper, begin and end.
using Table =
    nb::ndarray<const std::int64_t, nb::shape<5, -1>, nb::c_contig, nb::device::cpu>;

dsa::Pieces pieces_from(const Table& table, const dsa::Blocks& blocks) {
  const std::size_t m = table.shape(1), n = blocks.size.size();
  const auto row = [&](std::size_t k) {
    return std::span<const std::int64_t>(table.data() + k * m, m);
  };
  const dsa::Pieces found{row(0), row(1), row(2), row(3), row(4)};
  for (std::size_t k = 0; k < m; ++k) {
    require(0 <= found.owner[k] && static_cast<std::size_t>(found.owner[k]) < n,
            "a piece of no block");
    require(found.lower[k] < found.upper[k], "need lower < upper");
    require(0 <= found.begin[k] && found.begin[k] < found.end[k] &&
                found.end[k] <= blocks.size[static_cast<std::size_t>(found.owner[k])],
            "need 0 <= begin < end <= size");
  }
  require(blocks.period == 0, "pieces need a linear clock");
  return found;
}

// Marks the blocks of `order`, which must be in range and not marked before.
void mark(std::span<const std::int32_t> order, std::vector<bool>& seen) {
  for (const std::int32_t block : order) {
    require(block >= 0 && static_cast<std::size_t>(block) < seen.size(),
            "order names a block that does not exist");
    require(!seen[block], "order names a block twice");
    seen[block] = true;
  }
}

// One decode at a time on each decoder, whichever threads ask for it.
class Decoder {
 public:
  Decoder(const Ints& lower, const Ints& upper, const Ints& size,
          const std::optional<Ints>& alignment, std::int64_t period)
      : decoder_([&] {
          nb::gil_scoped_release released;
          return dsa::BestFit(blocks_from(lower, upper, size, alignment, period));
        }()) {}

  Out<std::int64_t> decode(const In<std::int32_t>& order,
                           const std::optional<In<std::int32_t>>& stack) {
    std::vector<std::int64_t> offsets(decoder_.size(), -1);
    {
      nb::gil_scoped_release released;
      const std::scoped_lock one_at_a_time(mutex_);
      std::vector<bool> seen(offsets.size());
      mark(span_of(order), seen);
      if (stack) {
        mark(span_of(*stack), seen);
        decoder_.decode_above(span_of(*stack), span_of(order), offsets);
      } else {
        decoder_.decode(span_of(order), offsets);
      }
    }
    return numpy_from(std::move(offsets));
  }

 private:
  dsa::BestFit decoder_;
  std::mutex mutex_;
};

Out<std::int32_t> longest_first(const Ints& lifetime, const Ints& size) {
  require(lifetime.size() == size.size(), "arrays differ in length");
  std::vector<std::int32_t> order;
  {
    nb::gil_scoped_release released;
    order = dsa::longest_first(span_of(lifetime), span_of(size));
  }
  return numpy_from(std::move(order));
}

Out<std::int64_t> fill_gaps(const Ints& lower, const Ints& upper, const Ints& size,
                            const Ints& alignment, const Ints& fixed,
                            const In<std::int32_t>& order, std::int64_t period,
                            std::optional<std::int64_t> capacity) {
  std::vector<std::int64_t> offsets(fixed.data(), fixed.data() + fixed.size());
  {
    nb::gil_scoped_release released;
    const dsa::Blocks blocks = blocks_from(lower, upper, size, alignment, period);
    require(offsets.size() == blocks.size.size(), "arrays differ in length");
    std::vector<bool> seen(offsets.size());
    std::transform(offsets.begin(), offsets.end(), seen.begin(),
                   [](auto x) { return x >= 0; });
    mark(span_of(order), seen);
    dsa::fill_gaps(blocks, span_of(order),
                   capacity.value_or(std::numeric_limits<std::int64_t>::max()),
                   offsets);
  }
  return numpy_from(std::move(offsets));
}

Out<std::int64_t> place_pieces(const Ints& size, const Ints& alignment,
                               const Ints& fixed, const In<std::int32_t>& order,
                               const Table& pieces) {
  const dsa::Blocks blocks{{}, {}, span_of(size), span_of(alignment)};
  const std::size_t n = blocks.size.size();
  require(blocks.alignment.size() == n && fixed.size() == n, "arrays differ in length");
  std::vector<std::int64_t> offsets;
  {
    nb::gil_scoped_release released;
    std::vector<bool> seen(n);
    std::transform(fixed.data(), fixed.data() + n, seen.begin(),
                   [](auto x) { return x >= 0; });
    mark(span_of(order), seen);
    require(std::ranges::all_of(blocks.alignment, [](auto x) { return x > 0; }),
            "need alignment > 0");
    const dsa::PieceBoard board(pieces_from(pieces, blocks), n);
    const auto packer = dsa::make_packer(blocks, span_of(fixed), {}, &board);
    packer->pack(span_of(order), std::numeric_limits<std::int64_t>::max());
    offsets.assign(packer->offsets().begin(), packer->offsets().end());
  }
  return numpy_from(std::move(offsets));
}

// ---- random search

using Rows = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::vector<std::int64_t> copied(const Ints& array) {
  return {array.data(), array.data() + array.size()};
}

// Keeps the blocks that the search looks at, and lets one thread in at a time.
class Search {
 public:
  Search(const Ints& lower, const Ints& upper, const Ints& size, const Rows& classic,
         std::uint64_t seed, const std::optional<Ints>& alignment,
         const std::optional<Ints>& fixed, std::int64_t period,
         const std::optional<Ints>& taken, const std::optional<Table>& pieces)
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

// ---- ejection

// Lets one thread in at a time.
class Ejection {
 public:
  Ejection(const Ints& lower, const Ints& upper, const Ints& size, const Ints& offsets,
           std::uint64_t seed, const std::optional<Ints>& alignment,
           const std::optional<Ints>& fixed, std::int64_t period) {
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

  void offer(const Ints& offsets) {
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
  void refuse_misplaced(const Ints& offsets) const {
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

// ---- exact search

dsa::Instance instance_from(const Ints& lower, const Ints& upper, const Ints& size,
                            const Ints& alignment, const Ints& fixed,
                            std::int64_t period, const std::optional<Ints>& beyond) {
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
  ExactSearch(const Ints& lower, const Ints& upper, const Ints& size,
              const Ints& alignment, const Ints& fixed, std::int64_t capacity,
              const std::vector<std::string>& orders, std::int64_t period,
              const std::optional<Ints>& beyond)
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
    bool interrupted = false;
    {
      nb::gil_scoped_release released;
      const std::scoped_lock one_at_a_time(mutex_);
      const memplan::StopSign stop(seconds, [&] {
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

NB_MODULE(_dsa, m) {
  m.doc() = "Kernels for dynamic storage allocation, on numpy arrays.";
  nb::class_<Decoder>(m, "BestFit")
      .def(nb::init<const Ints&, const Ints&, const Ints&, const std::optional<Ints>&,
                    std::int64_t>(),
           "lower"_a, "upper"_a, "size"_a, "alignment"_a = nb::none(), "period"_a = 0)
      .def("decode", &Decoder::decode, "order"_a, "stack"_a = nb::none());
  m.def("longest_first", &longest_first, "lifetime"_a, "size"_a);
  m.def("fill_gaps", &fill_gaps, "lower"_a, "upper"_a, "size"_a, "alignment"_a,
        "fixed"_a, "order"_a, "period"_a = 0, "capacity"_a = nb::none());
  m.def("place_pieces", &place_pieces, "size"_a, "alignment"_a, "fixed"_a, "order"_a,
        "pieces"_a);
  nb::class_<Search>(m, "Search")
      .def(
          nb::init<const Ints&, const Ints&, const Ints&, const Rows&, std::uint64_t,
                   const std::optional<Ints>&, const std::optional<Ints>&, std::int64_t,
                   const std::optional<Ints>&, const std::optional<Table>&>(),
          "lower"_a, "upper"_a, "size"_a, "classic"_a, "seed"_a,
          "alignment"_a = nb::none(), "fixed"_a = nb::none(), "period"_a = 0,
          "taken"_a = nb::none(), "pieces"_a = nb::none())
      .def("advance", &Search::advance, "goal"_a, "orders"_a, "seconds"_a,
           "hard_seconds"_a, "threads"_a,
           "below"_a = std::numeric_limits<std::int64_t>::max())
      .def_prop_ro("packed", &Search::packed)
      .def_prop_ro("peak", &Search::peak)
      .def_prop_ro("offsets", &Search::offsets, nb::rv_policy::move);
  nb::class_<Ejection>(m, "Ejection")
      .def(nb::init<const Ints&, const Ints&, const Ints&, const Ints&, std::uint64_t,
                    const std::optional<Ints>&, const std::optional<Ints>&,
                    std::int64_t>(),
           "lower"_a, "upper"_a, "size"_a, "offsets"_a, "seed"_a,
           "alignment"_a = nb::none(), "fixed"_a = nb::none(), "period"_a = 0)
      .def("offer", &Ejection::offer, "offsets"_a)
      .def("advance", &Ejection::advance, "goal"_a, "placements"_a, "seconds"_a,
           "hard_seconds"_a, "threads"_a, "work"_a = dsa::Ejection::kEndless)
      .def_prop_ro("placed", &Ejection::placed)
      .def_prop_ro("worked", &Ejection::worked)
      .def_prop_ro("peak", &Ejection::peak)
      .def_prop_ro("offsets", &Ejection::offsets, nb::rv_policy::move);
  nb::class_<ExactSearch>(m, "ExactSearch")
      .def(nb::init<const Ints&, const Ints&, const Ints&, const Ints&, const Ints&,
                    std::int64_t, const std::vector<std::string>&, std::int64_t,
                    const std::optional<Ints>&>(),
           "lower"_a, "upper"_a, "size"_a, "alignment"_a, "fixed"_a, "capacity"_a,
           "orders"_a, "period"_a = 0, "beyond"_a = nb::none())
      .def("run", &ExactSearch::run, "rounds"_a, "placements"_a, "threads"_a,
           "seconds"_a)
      .def("offsets", &ExactSearch::offsets)
      .def_prop_ro("nodes", &ExactSearch::nodes);
}
