#include "replay/table.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "replay/ranges.h"

namespace memplan {
namespace {

void check(const TableArrays& arrays) {
  const auto refuse = [](bool wrong, const char* why) {
    if (wrong) throw std::invalid_argument(why);
  };
  const std::size_t count = arrays.sizes.size(), steps = arrays.starts.size();
  const std::size_t begin = arrays.loop_begin, end = arrays.loop_end;
  refuse(arrays.offsets.size() != count ||
             (!arrays.sparse.empty() && arrays.sparse.size() != count) ||
             (!arrays.brief.empty() && arrays.brief.size() != count),
         "sizes, offsets, sparse and brief differ in length");
  refuse(arrays.elastic.size() != steps, "starts and elastic differ in length");
  refuse(begin > end || end > steps || (steps > 0 && begin == end),
         "the steps that repeat must be some, and reach beyond none");
  refuse(arrays.unmarked &&
             (begin > 0 || end < steps || count == 0 ||
              std::find(arrays.elastic.begin(), arrays.elastic.end(), true) !=
                  arrays.elastic.end()),
         "without marks, all steps must repeat, and none be elastic");
  refuse(std::find(arrays.elastic.begin(),
                   arrays.elastic.begin() + static_cast<std::ptrdiff_t>(begin),
                   true) != arrays.elastic.begin() + static_cast<std::ptrdiff_t>(begin),
         "a step of the warm-up must not be elastic");
  refuse(steps == 0 ? count > 0 : arrays.starts[0] != 0, "starts must begin with 0");
}

}  // namespace

Table table_of(const TableArrays& arrays, std::uint64_t granularity,
               std::uint64_t size_unit) {
  check(arrays);
  Table table;
  const std::size_t count = arrays.sizes.size(), steps = arrays.starts.size();
  table.requests.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t size = arrays.sizes[i], offset = arrays.offsets[i];
    if (size <= 0) throw std::invalid_argument("a size is not positive");
    if (offset > 0 && static_cast<std::uint64_t>(offset) % granularity != 0) {
      throw std::invalid_argument("an offset is not a multiple of " +
                                  std::to_string(granularity));
    }
    table.requests.push_back({round_up(static_cast<std::uint64_t>(size), size_unit), offset,
                              !arrays.sparse.empty() && arrays.sparse[i],
                              !arrays.brief.empty() && arrays.brief[i]});
  }
  table.steps.reserve(steps);
  for (std::size_t i = 0; i < steps; ++i) {
    const auto first = static_cast<std::size_t>(arrays.starts[i]);
    const std::size_t last =
        i + 1 < steps ? static_cast<std::size_t>(arrays.starts[i + 1]) : count;
    if (first > last) throw std::invalid_argument("starts must ascend");
    table.steps.push_back({first, last, arrays.elastic[i]});
  }
  table.loop_begin = arrays.loop_begin;
  table.loop_end = arrays.loop_end;
  table.arena_bytes = arrays.arena_bytes;
  table.online_bytes = arrays.online_bytes;
  table.unmarked = arrays.unmarked;
  table.between = arrays.between;
  table.by_lifespan = !arrays.brief.empty();
  return table;
}

}  // namespace memplan
