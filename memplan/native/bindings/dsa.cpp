// Python's view of the solver kernels: arrays in, arrays out, the GIL released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <vector>

#include "bindings/dsa_arrays.h"
#include "dsa/bestfit.h"
#include "dsa/gaps.h"

namespace nb = nanobind;
namespace dsa = memplan::dsa;
using namespace memplan::bindings;
using nb::literals::operator""_a;

void bind_exact(nb::module_& m);
void bind_ejection(nb::module_& m);
void bind_search(nb::module_& m);

namespace {

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
  Decoder(const In<std::int64_t>& lower, const In<std::int64_t>& upper,
          const In<std::int64_t>& size,
          const std::optional<In<std::int64_t>>& alignment, std::int64_t period)
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

Out<std::int32_t> longest_first(const In<std::int64_t>& lifetime,
                                const In<std::int64_t>& size) {
  require(lifetime.size() == size.size(), "arrays differ in length");
  std::vector<std::int32_t> order;
  {
    nb::gil_scoped_release released;
    order = dsa::longest_first(span_of(lifetime), span_of(size));
  }
  return numpy_from(std::move(order));
}

Out<std::int64_t> fill_gaps(const In<std::int64_t>& lower,
                            const In<std::int64_t>& upper, const In<std::int64_t>& size,
                            const In<std::int64_t>& alignment,
                            const In<std::int64_t>& fixed,
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

Out<std::int64_t> place_pieces(const In<std::int64_t>& size,
                               const In<std::int64_t>& alignment,
                               const In<std::int64_t>& fixed,
                               const In<std::int32_t>& order, const Table& pieces) {
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
    dsa::PiecePacker packer(board, blocks, span_of(fixed));
    packer.pack(span_of(order), std::numeric_limits<std::int64_t>::max());
    offsets.assign(packer.offsets().begin(), packer.offsets().end());
  }
  return numpy_from(std::move(offsets));
}

}  // namespace

NB_MODULE(_dsa, m) {
  bind_exact(m);
  bind_ejection(m);
  bind_search(m);
  m.doc() = "Kernels for dynamic storage allocation, on numpy arrays.";
  nb::class_<Decoder>(m, "BestFit")
      .def(nb::init<const In<std::int64_t>&, const In<std::int64_t>&,
                    const In<std::int64_t>&, const std::optional<In<std::int64_t>>&,
                    std::int64_t>(),
           "lower"_a, "upper"_a, "size"_a, "alignment"_a = nb::none(), "period"_a = 0)
      .def("decode", &Decoder::decode, "order"_a, "stack"_a = nb::none());
  m.def("longest_first", &longest_first, "lifetime"_a, "size"_a);
  m.def("fill_gaps", &fill_gaps, "lower"_a, "upper"_a, "size"_a, "alignment"_a,
        "fixed"_a, "order"_a, "period"_a = 0, "capacity"_a = nb::none());
  m.def("place_pieces", &place_pieces, "size"_a, "alignment"_a, "fixed"_a, "order"_a,
        "pieces"_a);
}
