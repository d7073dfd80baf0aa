// Python's view of the checker.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "bindings/arrays.h"
#include "require.h"
#include "verify/overlaps.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

using memplan::require;
using memplan::span_of;

namespace {

using Column = memplan::In<std::int64_t>;
using Rows = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>>;

Rows overlaps(const Column& lower, const Column& upper, const Column& begin,
              const Column& end) {
  const memplan::verify::Pieces pieces{span_of(lower), span_of(upper), span_of(begin),
                                       span_of(end)};
  const std::size_t n = lower.size();
  require(upper.size() == n && begin.size() == n && end.size() == n,
          "arrays differ in length");
  for (std::size_t i = 0; i < n; ++i) {
    require(pieces.lower[i] >= 0 && pieces.upper[i] >= 0,
            "need lifespans that are not negative");
    require(pieces.begin[i] < pieces.end[i], "need begin < end");
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
