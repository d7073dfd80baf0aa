#include "dsa/exact_memo.h"

#include <algorithm>
#include <bit>

namespace memplan::dsa {
namespace {

constexpr std::size_t kFirstKeys = std::size_t{1} << 16;
constexpr std::size_t kEntriesPerKey = 64;  // of keys_, on average: a guess

std::uint64_t mixed(std::uint64_t x) {
  x *= 0x9e3779b97f4a7c15;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 29);
}

}  // namespace

template <class V>
Memo<V>::Memo(std::size_t bytes) {
  most_keys_ = std::bit_floor(std::max(bytes / sizeof(V), kFirstKeys));
  keys_.resize(kFirstKeys);
  entries_.resize(kFirstKeys / kEntriesPerKey);
}

// Twice the room; only while the ring has not come round.
template <class V>
void Memo<V>::grow() {
  keys_.resize(2 * keys_.size());
  std::vector<Entry> old(2 * entries_.size());
  old.swap(entries_);
  for (const Entry& entry : old) {
    if (!entry.count) continue;
    Entry* room = bucket(entry.hash);
    while (room->count) ++room;  // never more than were in one bucket before
    *room = entry;
  }
}

template <class V>
std::uint64_t Memo<V>::hash(std::span<const std::int32_t> waiting, const V* least) {
  std::uint64_t sum = 0;
  for (const std::int32_t k : waiting) {
    sum += mixed(static_cast<std::uint64_t>(least[k]) << 20 ^
                 static_cast<std::uint64_t>(k));
  }
  return mixed(sum);
}

template <class V>
typename Memo<V>::Entry* Memo<V>::bucket(std::uint64_t hash) {
  return &entries_[hash & (entries_.size() - 1) & ~(kWays - 1)];
}

template <class V>
void Memo<V>::mark(std::span<const std::int32_t> waiting) {
  if (++calls_ == 0) {
    std::fill(marks_.begin(), marks_.end(), 0);
    calls_ = 1;
  }
  for (const std::int32_t k : waiting) {
    if (marks_.size() <= static_cast<std::size_t>(k)) marks_.resize(2 * k + 64, 0);
    marks_[k] = calls_;
  }
}

// Whether the entry is of as many buffers as are marked, and of the same, at the same
// least offsets; with `bars`: and none was barred that is not now.
template <class V>
bool Memo<V>::matches(const Entry& entry, const State<V>& state, bool bars) const {
  std::size_t at = entry.at & (keys_.size() - 1);
  for (std::int32_t i = 0; i < entry.count; ++i) {
    const auto k = static_cast<std::int32_t>(keys_[at] >> 1);
    if (marks_[k] != calls_ || keys_[at + 1] != state.least(k)) return false;
    if (bars && (keys_[at] & 1) && !state.barred(k)) return false;
    at = (at + 2) & (keys_.size() - 1);
  }
  return true;
}

template <class V>
bool Memo<V>::fails(std::uint64_t hash, std::span<const std::int32_t> waiting,
                    const State<V>& state, V last) {
  const auto count = static_cast<std::int32_t>(waiting.size());
  const Entry* entry = bucket(hash);
  bool marked = false;
  for (std::size_t way = 0; way < kWays; ++way, ++entry) {
    if (entry->hash != hash || entry->count != count || entry->last > last) continue;
    if (!written(*entry)) continue;
    if (!marked) mark(waiting);
    marked = true;
    if (matches(*entry, state, entry->last == last)) return true;
  }
  return false;
}

template <class V>
void Memo<V>::add_failure(std::uint64_t hash, std::span<const std::int32_t> waiting,
                          const State<V>& state, V last) {
  const auto count = static_cast<std::int32_t>(waiting.size());
  if (2 * waiting.size() > keys_.size()) return;
  if (written_ + 2 * waiting.size() > keys_.size() && keys_.size() < most_keys_) grow();
  Entry* const first = bucket(hash);
  Entry* chosen = first;
  mark(waiting);
  for (Entry* entry = first; entry < first + kWays; ++entry) {
    // A weaker failure of the same state gives way.
    if (entry->hash == hash && entry->count == count && entry->last >= last &&
        written(*entry) && matches(*entry, state, false)) {
      chosen = entry;
      break;
    }
    if (!entry->count || entry->at < chosen->at) chosen = entry;
    if (!entry->count) break;
  }
  *chosen = {hash, written_, last, count};
  std::size_t at = written_ & (keys_.size() - 1);
  for (const std::int32_t k : waiting) {
    keys_[at] = static_cast<V>(2 * k + state.barred(k));
    keys_[at + 1] = state.least(k);
    at = (at + 2) & (keys_.size() - 1);
  }
  written_ += 2 * waiting.size();
}

template class Memo<std::int32_t>;
template class Memo<std::int64_t>;

}  // namespace memplan::dsa
