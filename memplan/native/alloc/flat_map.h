// Few things that are looked up again and again: they lie side by side, and to find one
// touches one line of the core's cache.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace memplan {

// Nothing is ever taken out. Hash: of a Key, well mixed in its upper bits.
template <typename Key, typename Value, typename Hash>
class FlatMap {
 public:
  // Null if it is not there; valid until `put`.
  const Value* find(const Key& key) const {
    if (entries_.empty()) return nullptr;
    const Entry& entry = entries_[place_of(entries_, key)];
    return entry.taken ? &entry.value : nullptr;
  }
  void put(const Key& key, const Value& value) {
    if (2 * (count_ + 1) > entries_.size()) grow();
    Entry& entry = entries_[place_of(entries_, key)];
    count_ += entry.taken ? 0 : 1;
    entry = {key, value, true};
  }

 private:
  struct Entry {
    Key key = {};
    Value value = {};
    bool taken = false;
  };
  static constexpr std::size_t kFirst = 64;  // a power of two

  // Where it is, or would be: half of all places are free.
  static std::size_t place_of(const std::vector<Entry>& entries, const Key& key) {
    std::size_t at = (Hash{}(key) >> 32) & (entries.size() - 1);
    while (entries[at].taken && !(entries[at].key == key)) {
      at = (at + 1) & (entries.size() - 1);
    }
    return at;
  }
  void grow() {
    std::vector<Entry> larger(entries_.empty() ? kFirst : 2 * entries_.size());
    for (const Entry& entry : entries_) {
      if (entry.taken) larger[place_of(larger, entry.key)] = entry;
    }
    entries_ = std::move(larger);
  }

  std::vector<Entry> entries_;
  std::size_t count_ = 0;
};

}  // namespace memplan
