#include "dsa/gaps.h"

#include "dsa/occupancy.h"

namespace memplan::dsa {

void fill_gaps(const Blocks& blocks, std::span<const std::int32_t> order,
               std::int64_t capacity, std::span<std::int64_t> offsets) {
  const Sections sections =
      cut_into_sections(blocks.lower, blocks.upper, blocks.period);
  Occupancy taken(sections);
  const auto occupy = [&](std::int32_t i) {
    taken.add(Runs(sections, i), offsets[i], offsets[i] + blocks.size[i]);
  };
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] >= 0) occupy(static_cast<std::int32_t>(i));
  }
  for (const std::int32_t i : order) {
    const std::int64_t limit = capacity - blocks.size[i];
    if (limit < 0) continue;
    const std::int64_t unit = blocks.alignment.empty() ? 1 : blocks.alignment[i];
    const std::int64_t offset =
        taken.lowest_gap(Runs(sections, i), blocks.size[i], unit, limit);
    if (offset > limit) continue;
    offsets[i] = offset;
    occupy(i);
  }
}

}  // namespace memplan::dsa
