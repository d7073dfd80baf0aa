// The stack machine of a pickle, with the instructions alone that build data.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
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
  Cell run() {
    for (std::uint64_t i = 0; i < limits_.steps; ++i) {
      if (next_ >= data_.size()) throw Fault{data_.size(), -1, true, ""};
      at_ = next_;
      const auto code = static_cast<unsigned char>(data_[next_++]);
      if (code == '.') {
        const std::size_t left = stack_.size() - base();
        if (!marks_.empty() || left != 1) {
          fail("ends with " + std::to_string(left) + " values on its stack, not one");
        }
        if (next_ != data_.size()) {
          fail("goes on for " + std::to_string(data_.size() - next_) +
               " bytes after its end");
        }
        return stack_.back();
      }
      step(code);
    }
    fail("takes more than " + std::to_string(limits_.steps) + " instructions in " +
         std::to_string(data_.size()) + " bytes");
  }
  Values values;

 private:
  static bool is_scalar(Cell cell) {
    const Kind kind = kind_of(cell);
    return kind != Kind::kList && kind != Kind::kDict && kind != Kind::kTuple;
  }

  void step(unsigned char code) {
    switch (code) {
      case 0x80:  // PROTO
        if (const std::uint64_t version = number(1); version > limits_.protocol) {
          fail("is of protocol " + std::to_string(version) + "; up to " +
               std::to_string(limits_.protocol) + " are known");
        }
        return;
      case 0x95:  // FRAME
        take(8);
        return;
      case '(':  // MARK
        if (marks_.size() == limits_.marks) {
          fail("opens more than " + std::to_string(limits_.marks) +
               " containers in each other");
        }
        marks_.push_back(stack_.size());
        return;
      case 'N': stack_.push_back(kNone); return;
      case 0x88: stack_.push_back(kTrue); return;
      case 0x89: stack_.push_back(kFalse); return;
      case 'h': get(number(1)); return;
      case 'j': get(number(4)); return;
      case 'q': put(number(1)); return;
      case 'r': put(number(4)); return;
      case 0x94: put(memo_.size() + far_memo_.size()); return;
      default: fetch_or_number(code);
    }
  }
  void fetch_or_number(unsigned char code) {
    switch (code) {
      case 'J': push_int(static_cast<std::int32_t>(number(4))); return;
      case 'K': push_int(static_cast<std::int64_t>(number(1))); return;
      case 'M': push_int(static_cast<std::int64_t>(number(2))); return;
      case 0x8A: push_long(); return;
      case 'G': {
        std::uint64_t bits = number(8), swapped = 0;
        for (int i = 0; i < 8; ++i, bits >>= 8) swapped = swapped << 8 | (bits & 0xFFU);
        values.floats.push_back(std::bit_cast<double>(swapped));
        stack_.push_back(cell_of(Kind::kFloat, values.floats.size() - 1));
        return;
      }
      case 0x8C: push_text(number(1)); return;
      case 'X': push_text(number(4)); return;
      case 0x8D: push_text(number(8)); return;
      default: build(code);
    }
  }
  void build(unsigned char code) {
    switch (code) {
      case ']':
        pay(limits_.container);
        values.lists.emplace_back();
        stack_.push_back(cell_of(Kind::kList, values.lists.size() - 1));
        return;
      case '}':
        pay(limits_.container);
        values.dicts.emplace_back();
        stack_.push_back(cell_of(Kind::kDict, values.dicts.size() - 1));
        return;
      case ')': tuple({}); return;
      case 't': tuple(to_mark()); return;
      case 0x85: tuple(pop(1)); return;
      case 0x86: tuple(pop(2)); return;
      case 0x87: tuple(pop(3)); return;
      case 'a': extend(pop(1)); return;
      case 'e': extend(to_mark()); return;
      case 's': set_items(pop(2)); return;
      case 'u': set_items(to_mark()); return;
      default: throw Fault{at_, code, false, ""};
    }
  }
  std::uint64_t number(int width) {
    const std::size_t begin = take(static_cast<std::uint64_t>(width));
    std::uint64_t value = 0;
    for (int i = width; i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(data_[begin + i]);
    }
    return value;
  }
  std::size_t take(std::uint64_t count) {
    if (count > data_.size() - next_) fail("is cut off");
    const std::size_t begin = next_;
    next_ += count;
    return begin;
  }
  void push_int(std::int64_t value) {
    stack_.push_back(cell_of(Kind::kInt, static_cast<std::uint64_t>(value)));
  }
  void push_long() {
    const std::uint64_t length = number(1);
    if (length > limits_.long_bytes) {
      fail("holds an integer of " + std::to_string(length) + " bytes");
    }
    const std::size_t begin = take(length);
    __int128 value = 0;
    if (length > 0 && static_cast<unsigned char>(data_[begin + length - 1]) >= 0x80) {
      value = -1;
    }
    for (std::uint64_t i = length; i-- > 0;) {
      const auto digit = static_cast<unsigned char>(data_[begin + i]);
      value = static_cast<__int128>(static_cast<unsigned __int128>(value) << 8 | digit);
    }
    constexpr __int128 kSmall = __int128{1} << 60;
    if (value >= -kSmall && value < kSmall) {
      push_int(static_cast<std::int64_t>(value));
      return;
    }
    values.longs.push_back(value);
    stack_.push_back(cell_of(Kind::kLong, values.longs.size() - 1));
  }
  void push_text(std::uint64_t length) {
    if (length > limits_.text_bytes) {
      fail("holds a text of " + std::to_string(length) + " bytes");
    }
    const std::size_t begin = take(length);
    pay(limits_.text);
    const std::string_view text = data_.substr(begin, length);
    const auto [place, added] = values.places.try_emplace(
        text, static_cast<std::uint32_t>(values.texts.size()));
    if (added) {
      if (!is_utf8(text)) fail("holds a text that is not UTF-8");
      values.texts.push_back(text);
    }
    stack_.push_back(cell_of(Kind::kText, place->second));
  }
  void pay(std::int64_t weight, std::int64_t count = 1) {
    limits_.memory -= weight * count;
    if (limits_.memory < 0) {
      fail("holds too much for its " + std::to_string(data_.size()) + " bytes");
    }
  }
  std::vector<Cell> pop(std::size_t count) {
    if (stack_.size() - base() < count) fail("takes from an empty stack");
    std::vector<Cell> taken(stack_.end() - static_cast<std::ptrdiff_t>(count),
                            stack_.end());
    stack_.resize(stack_.size() - count);
    return taken;
  }
  std::vector<Cell> to_mark() {
    if (marks_.empty()) fail("goes back to a mark that is not there");
    std::vector<Cell> taken(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                            stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return taken;
  }
  void tuple(std::vector<Cell> parts) {
    pay(limits_.container);
    if (!std::all_of(parts.begin(), parts.end(), is_scalar)) {
      fail("puts a container into a tuple");
    }
    values.tuples.push_back(std::move(parts));
    stack_.push_back(cell_of(Kind::kTuple, values.tuples.size() - 1));
  }
  void extend(const std::vector<Cell>& parts) {
    constexpr const char* kProblem = "appends to what is not a list";
    const Cell list = top(kProblem);
    if (kind_of(list) != Kind::kList) fail(kProblem);
    auto& items = values.lists[place_of(list)];
    items.insert(items.end(), parts.begin(), parts.end());
  }
  void set_items(const std::vector<Cell>& parts) {
    constexpr const char* kProblem = "sets an item of what is not a dict";
    const Cell cell = top(kProblem);
    if (kind_of(cell) != Kind::kDict) fail(kProblem);
    if (parts.size() % 2 != 0) fail("has a key without a value");
    for (std::size_t i = 0; i < parts.size(); i += 2) {
      if (kind_of(parts[i]) != Kind::kText) fail("has a key that is not text");
    }
    auto& dict = values.dicts[place_of(cell)];
    const std::uint64_t end = values.keys.size();
    if (dict.count > 0 && dict.begin + dict.count != end) {
      pay(limits_.item, dict.count);  // its items move, to be together
      for (std::uint32_t i = 0; i < dict.count; ++i) {
        values.keys.push_back(values.keys[dict.begin + i]);
        values.items.push_back(values.items[dict.begin + i]);
      }
    }
    dict.begin = values.keys.size() - dict.count;
    pay(limits_.item, static_cast<std::int64_t>(parts.size() / 2));
    for (std::size_t i = 0; i < parts.size(); i += 2) {
      values.keys.push_back(static_cast<std::uint32_t>(place_of(parts[i])));
      values.items.push_back(parts[i + 1]);
    }
    dict.count += static_cast<std::uint32_t>(parts.size() / 2);
  }
  void put(std::uint64_t index) {
    if (stack_.size() == base()) fail("stores what is not there");
    pay(limits_.memo);
    if (index < memo_.size()) {
      memo_[index] = stack_.back();
    } else if (index == memo_.size() && !far_memo_.contains(index)) {
      memo_.push_back(stack_.back());
    } else {
      far_memo_[index] = stack_.back();
    }
  }
  void get(std::uint64_t index) {
    if (index < memo_.size()) {
      stack_.push_back(memo_[index]);
      return;
    }
    const auto found = far_memo_.find(index);
    if (found == far_memo_.end()) {
      fail("fetches value " + std::to_string(index) + ", which it never stored");
    }
    stack_.push_back(found->second);
  }
  std::size_t base() const { return marks_.empty() ? 0 : marks_.back(); }
  Cell& top(const char* problem) {
    if (stack_.size() == base()) fail(problem);
    return stack_.back();
  }
  void fail(const std::string& problem) const { throw Fault{at_, -1, false, problem}; }

  std::string_view data_;
  Limits limits_;
  std::uint64_t at_ = 0, next_ = 0;
  std::vector<Cell> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Cell> memo_;
  std::unordered_map<std::uint64_t, Cell> far_memo_;  // beyond the end of memo_
};

}  // namespace memplan::plain
