// How arrays cross between Python and the solver kernels.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "dsa/bestfit.h"
#include "dsa/packers.h"

namespace memplan::bindings {

namespace nb = nanobind;

template <typename T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <typename T>
std::span<const T> span_of(const In<T>& array) {
  return {array.data(), array.size()};
}

template <typename T>
Out<T> numpy_from(std::vector<T>&& values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept,
                    [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Out<T>(kept->data(), {kept->size()}, owner);
}

inline void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

inline dsa::Blocks blocks_from(const In<std::int64_t>& lower,
                               const In<std::int64_t>& upper,
                               const In<std::int64_t>& size,
                               const std::optional<In<std::int64_t>>& alignment,
                               std::int64_t period) {
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

inline dsa::Pieces pieces_from(const Table& table, const dsa::Blocks& blocks) {
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

}  // namespace memplan::bindings
