#include "plain/values.h"

namespace memplan::plain {

bool is_utf8(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  const auto* end = p + text.size();
  while (p < end) {
    if (*p < 0x80) {
      ++p;
      continue;
    }
    int more = 0;
    std::uint32_t least = 0, value = 0;
    if (*p >= 0xC2 && *p < 0xE0) {
      more = 1, least = 0x80, value = *p & 0x1FU;
    } else if (*p >= 0xE0 && *p < 0xF0) {
      more = 2, least = 0x800, value = *p & 0x0FU;
    } else if (*p >= 0xF0 && *p < 0xF5) {
      more = 3, least = 0x10000, value = *p & 0x07U;
    } else {
      return false;
    }
    if (end - p <= more) return false;
    for (int i = 1; i <= more; ++i) {
      if ((p[i] & 0xC0U) != 0x80) return false;
      value = value << 6 | (p[i] & 0x3FU);
    }
    if (value < least || value > 0x10FFFF) return false;
    p += more + 1;
  }
  return true;
}

bool Values::find(const Range& dict, std::uint32_t key, Cell& value) const {
  for (std::uint64_t i = dict.begin + dict.count; i-- > dict.begin;) {
    if (keys[i] == key) {
      value = items[i];
      return true;
    }
  }
  return false;
}

std::int64_t Values::text_place(std::string_view text) const {
  const auto found = places.find(text);
  return found == places.end() ? -1 : static_cast<std::int64_t>(found->second);
}

}  // namespace memplan::plain
