// States of the exact search that are known to fail.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsa/exact_state.h"

namespace memplan::dsa {

/// Remembers failures of one search, at one capacity or a falling one.
///
/// The key is all of a state: which buffers wait, the least offset of each, and which
/// of them are barred there. Keys are kept and compared whole, since a hash alone would
/// prove nothing. Nothing in them depends on a ranking. Where some may not lie below an
/// offset, they may not lie below any higher one either; where they may not though a
/// few are barred, they may not where more are; a failure at one capacity implies one
/// at any smaller. At most `bytes` of memory; when that is full, older entries go.
template <class V>
class Memo {
 public:
  explicit Memo(std::size_t bytes);

  /// The hash of a state, whatever the order of `waiting`.
  static std::uint64_t hash(std::span<const std::int32_t> waiting, const V* least);

  /// Whether these buffers are known to fail where none may lie below `last`.
  bool fails(std::uint64_t hash, std::span<const std::int32_t> waiting,
             const State<V>& state, V last);

  void add_failure(std::uint64_t hash, std::span<const std::int32_t> waiting,
                   const State<V>& state, V last);

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::uint64_t at = 0;  // in keys_, counted from the beginning of all time
    V last = 0;
    std::int32_t count = 0;  // 0: no entry
  };

  static constexpr std::size_t kWays = 4;
  bool matches(const Entry& entry, const State<V>& state, bool bars) const;
  bool written(const Entry& entry) const { return written_ - entry.at <= keys_.size(); }
  void mark(std::span<const std::int32_t> waiting);
  Entry* bucket(std::uint64_t hash);
  void grow();

  std::size_t most_keys_;
  std::vector<Entry> entries_;  // in buckets of kWays
  std::vector<V> keys_;         // a ring of (buffer x 2 + barred, offset) pairs
  std::vector<std::uint32_t> marks_;  // by buffer: in which call it was named last
  std::uint32_t calls_ = 0;
  std::uint64_t written_ = 0;
};

extern template class Memo<std::int32_t>;
extern template class Memo<std::int64_t>;

}  // namespace memplan::dsa
