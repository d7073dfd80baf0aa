// What a pickle of plain data stands for.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace memplan::plain {

// A value: its kind in the low bits, above them the value or where it is kept.
using Cell = std::uint64_t;
enum class Kind : std::uint8_t {
  kInt,
  kLong,
  kFloat,
  kText,
  kList,
  kDict,
  kTuple,
  kConstant
};
constexpr int kKindBits = 3;
constexpr Kind kind_of(Cell cell) { return static_cast<Kind>(cell & 7U); }
constexpr std::uint64_t place_of(Cell cell) { return cell >> kKindBits; }
constexpr Cell cell_of(Kind kind, std::uint64_t place) {
  return place << kKindBits | static_cast<Cell>(kind);
}
constexpr std::int64_t small_of(Cell cell) {
  return static_cast<std::int64_t>(cell) >> kKindBits;
}
constexpr Cell kNone = cell_of(Kind::kConstant, 0);
constexpr Cell kFalse = cell_of(Kind::kConstant, 1);
constexpr Cell kTrue = cell_of(Kind::kConstant, 2);

// What was read. A dict's items lie together, a key that comes again after the first.
class Values {
 public:
  struct Range {
    std::uint64_t begin = 0;
    std::uint32_t count = 0;
  };
  std::vector<__int128> longs;
  std::vector<double> floats;
  std::vector<std::string_view> texts;  // each once; into the data
  std::vector<std::vector<Cell>> lists;
  std::vector<Range> dicts;
  std::vector<std::vector<Cell>> tuples;
  std::deque<std::uint32_t> keys;  // of all dicts' items: texts
  std::deque<Cell> items;

  // The value of a key in a dict, the last if it is there twice; false: there is none.
  bool find(const Range& dict, std::uint32_t key, Cell& value) const {
    for (std::uint64_t i = dict.begin + dict.count; i-- > dict.begin;) {
      if (keys[i] == key) {
        value = items[i];
        return true;
      }
    }
    return false;
  }
  // The place of a text among `texts`, or -1.
  std::int64_t text_place(std::string_view text) const {
    const auto found = places.find(text);
    return found == places.end() ? -1 : static_cast<std::int64_t>(found->second);
  }
  std::unordered_map<std::string_view, std::uint32_t> places;
};

// Whether it is UTF-8, where surrogates alone pass, too.
inline bool is_utf8(std::string_view text) {
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

}  // namespace memplan::plain
