// The stack machine of a pickle, with the instructions alone that build data.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace memplan::plain {

// A value: its kind in the low bits, above them the value or where it is kept.
using Cell = std::uint64_t;
enum class Kind : std::uint8_t { kInt, kLong, kFloat, kText, kList, kDict, kTuple,
                                 kConstant };
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

struct Limits {
  std::int64_t memory;       // bytes, by the weights below
  std::uint64_t steps;       // instructions
  std::uint64_t marks;       // containers open at once
  std::uint64_t text_bytes;  // of one text
  std::uint64_t long_bytes;  // of one integer
  std::uint64_t protocol;
  std::int64_t container, item, memo, text;  // weights
};

// Why reading ended early. opcode: of an instruction that is refused, or -1; cut: the
// data ended between two instructions; else `problem` says it. at: the byte.
struct Fault {
  std::uint64_t at;
  int opcode = -1;
  bool cut = false;
  std::string problem;
};

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
  bool find(const Range& dict, std::uint32_t key, Cell& value) const;
  // The place of a text among `texts`, or -1.
  std::int64_t text_place(std::string_view text) const;
  std::unordered_map<std::string_view, std::uint32_t> places;
};

class Machine {
 public:
  Machine(std::string_view data, const Limits& limits) : data_(data), limits_(limits) {}
  // Throws Fault.
  Cell run();
  Values values;

 private:
  void step(unsigned char code);
  void fetch_or_number(unsigned char code);
  void build(unsigned char code);
  std::uint64_t number(int width);
  std::size_t take(std::uint64_t count);
  void push_int(std::int64_t value);
  void push_long();
  void push_text(std::uint64_t length);
  void pay(std::int64_t weight, std::int64_t count = 1);
  std::vector<Cell> pop(std::size_t count);
  std::vector<Cell> to_mark();
  void tuple(std::vector<Cell> parts);
  void extend(const std::vector<Cell>& parts);
  void set_items(const std::vector<Cell>& parts);
  void put(std::uint64_t index);
  void get(std::uint64_t index);
  std::size_t base() const { return marks_.empty() ? 0 : marks_.back(); }
  Cell& top(const char* problem);
  [[noreturn]] void fail(const std::string& problem) const;

  std::string_view data_;
  Limits limits_;
  std::uint64_t at_ = 0, next_ = 0;
  std::vector<Cell> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Cell> memo_;
  std::unordered_map<std::uint64_t, Cell> far_memo_;  // beyond the end of memo_
};

// Whether it is UTF-8, where surrogates alone pass, too.
bool is_utf8(std::string_view text);

}  // namespace memplan::plain
