// Ranges, for Python to call.
#include "replay/ranges.h"

#define PROBE extern "C" __attribute__((visibility("default")))

using memplan::Ranges;

PROBE Ranges* ranges_make(std::uint64_t size, std::uint64_t granularity) {
  return new Ranges(size, granularity);
}
PROBE void ranges_destroy(Ranges* ranges) { delete ranges; }
PROBE bool ranges_take(Ranges* ranges, std::uint64_t offset, std::uint64_t bytes) {
  return ranges->take(offset, bytes);
}
PROBE std::int64_t ranges_take_anywhere(Ranges* ranges, std::uint64_t bytes,
                                        std::uint64_t limit) {
  return ranges->take_anywhere(bytes, limit);
}
PROBE std::uint64_t ranges_give_back(Ranges* ranges, std::uint64_t offset) {
  return ranges->give_back(offset);
}
PROBE std::uint64_t ranges_size(Ranges* ranges) { return ranges->size(); }
PROBE std::uint64_t ranges_bytes_in_use(Ranges* ranges) { return ranges->bytes_in_use(); }
PROBE std::uint64_t ranges_count(Ranges* ranges) { return ranges->used().size(); }
