// Python's view of the checker.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "verify/overlaps.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

using Column = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig,
                           nb::device::cpu>;
using Rows = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>>;

Rows overlaps(const Column& lower, const Column& upper, const Column& begin,
              const Column& end) {
  const auto span_of = [&](const Column& column) {
    if (column.size() != lower.size()) {
      throw std::invalid_argument("arrays differ in length");
    }
    return std::span<const std::int64_t>(column.data(), column.size());
  };
  const memplan::verify::Pieces pieces{span_of(lower), span_of(upper), span_of(begin),
                                       span_of(end)};
  for (std::size_t i = 0; i < pieces.lower.size(); ++i) {
    if (pieces.lower[i] < 0 || pieces.upper[i] < 0) {
      throw std::invalid_argument("need lifespans that are not negative");
    }
    if (pieces.begin[i] >= pieces.end[i]) {
      throw std::invalid_argument("need begin < end");
    }
  }
  auto* rows = new std::vector<std::int64_t>();
  nb::capsule owner(rows, [](void* p) noexcept {
    delete static_cast<std::vector<std::int64_t>*>(p);
  });
  {
    nb::gil_scoped_release released;
    for (const auto& clash : memplan::verify::overlaps(pieces)) {
      rows->insert(rows->end(), {clash.newcomer, clash.there, clash.time});
    }
  }
  return Rows(rows->data(), {rows->size() / 3, 3}, owner);
}

}  // namespace

NB_MODULE(_verify, m) {
  m.doc() = "What plans are verified with: no code of the solvers'.";
  m.def("overlaps", &overlaps, "lower"_a, "upper"_a, "begin"_a, "end"_a);
}
