// States of the exact search that are known to fail.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace memplan::dsa {

/// A search's last placement: nothing may follow below (offset, rank).
template <class V>
struct Last {
  V offset = 0;
  std::int32_t rank = -1;
  friend auto operator<=>(const Last&, const Last&) = default;
};

/// Remembers failures of one search: under one ranking, at one capacity or a falling
/// one.
///
/// The key is all of a state: which buffers wait and the least offset of each. Keys are
/// kept and compared whole, since a hash alone would prove nothing. A failure after
/// some last placement implies one after any later; a failure at one capacity implies
/// one at any smaller. At most `bytes` of memory; when that is full, older entries go.
template <class V>
class Memo {
 public:
  explicit Memo(std::size_t bytes);

  /// The hash of a state, in the order of `waiting`, which must be ascending.
  static std::uint64_t hash(std::span<const std::int32_t> waiting, const V* least);

  /// Whether this state is known to fail after `last`.
  bool fails(std::uint64_t hash, std::span<const std::int32_t> waiting, const V* least,
             Last<V> last) const;

  void add_failure(std::uint64_t hash, std::span<const std::int32_t> waiting,
                   const V* least, Last<V> last);

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::uint64_t at = 0;  // in keys_, counted from the beginning of all time
    Last<V> last;
    std::int32_t count = 0;  // 0: no entry
  };

  static constexpr std::size_t kWays = 4;
  bool matches(const Entry& entry, std::uint64_t hash,
               std::span<const std::int32_t> waiting, const V* least) const;
  const Entry* bucket(std::uint64_t hash) const;
  void grow();

  std::size_t most_keys_;
  std::vector<Entry> entries_;  // in buckets of kWays
  std::vector<V> keys_;         // a ring of (rank, offset) pairs
  std::uint64_t written_ = 0;
};

extern template class Memo<std::int32_t>;
extern template class Memo<std::int64_t>;

}  // namespace memplan::dsa
