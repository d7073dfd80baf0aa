// The stack machine of a pickle, with the instructions alone that build data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plain/values.h"

namespace memplan::plain {

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

}  // namespace memplan::plain
