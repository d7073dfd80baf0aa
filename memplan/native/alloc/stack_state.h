// What is known of who asks: of a recording, and of the thread that asks.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include "alloc/frames.h"
#include "alloc/journal.h"
#include "alloc/stacks.h"

namespace memplan {

// ---- what tells one stack from another

// A stack is told apart by its places, or by that of the forward pass and a node's type.
// Types are kept alive, as code objects are: an address stands for one of them only.
struct Key {
  std::vector<Place> places;
  const void* node;
  std::int32_t origin;  // the module, or the index of the forward pass's stack
  int phase;            // a Phase
  bool operator==(const Key&) const = default;
};

inline std::size_t mixed(const Place& place) {
  return (reinterpret_cast<std::size_t>(place.first) ^
          (static_cast<std::size_t>(place.second) << 32)) *
         0x9E3779B97F4A7C15u;
}

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::size_t sum = reinterpret_cast<std::size_t>(key.node) ^
                      (static_cast<std::size_t>(key.origin) << 3) ^
                      static_cast<std::size_t>(key.phase);
    for (const Place& place : key.places) sum = (sum << 5) + (sum >> 2) + mixed(place);
    return sum;
  }
};

// Which request of a forward pass made a node of autograd's, by sequence numbers: of the nodes that one thread made last: it alone remembers, any thread may ask. A node's
// successor is the number that the request saw which was made next.
class ForwardMemory {
 public:
  // The stack of the request that first saw a number.
  void remember(std::uint64_t sequence, std::int32_t stack) {
    std::atomic<std::uint64_t>& slot = slots_[sequence % kSlots];
    if (turn_of(slot.load(std::memory_order_relaxed)) == turn(sequence)) return;
    const auto kept = static_cast<std::uint32_t>(stack);
    slot.store((turn(sequence) << 32) | kept, std::memory_order_release);
  }
  // The stack of the request that made the node of this number, or of the next one; -1 if
  // that is not known (any more).
  std::int32_t stack_of(std::uint64_t sequence) const {
    if (sequence > std::numeric_limits<std::uint64_t>::max() - kReach) return -1;
    for (std::uint64_t next = sequence + 1; next <= sequence + kReach; ++next) {
      const std::uint64_t slot = slots_[next % kSlots].load(std::memory_order_acquire);
      if (turn_of(slot) == turn(next)) return static_cast<std::int32_t>(slot);
    }
    return -1;
  }

 private:
  static constexpr std::size_t kSlots = 1 << 16;  // a power of two
  static constexpr std::uint64_t kReach = 256;    // nodes that ask for nothing lie between
  // What tells numbers of one slot apart: which round they are from; 0 is none. In 32 bits,
  // as a thread never makes 2^48 nodes.
  static std::uint64_t turn(std::uint64_t sequence) {
    return (sequence / kSlots + 1) & 0xFFFFFFFFu;
  }
  static std::uint64_t turn_of(std::uint64_t slot) { return slot >> 32; }

  std::vector<std::atomic<std::uint64_t>> slots_ =
      std::vector<std::atomic<std::uint64_t>>(kSlots);
};

// ---- what noting takes of a program's time

// Of something done often: how often, and what one took, by a few that are timed. Any
// thread.
class SampledCost {
 public:
  // Whether this one is to be timed, from now to `timed`.
  bool begins() { return count_.fetch_add(1, std::memory_order_relaxed) % kEvery == 0; }
  void timed(std::int64_t begin_ns) {
    const std::uint64_t taken = taken_.fetch_add(1, std::memory_order_relaxed);
    samples_[taken % kSamples].store(now_ns() - begin_ns, std::memory_order_relaxed);
  }
  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  // The mean of those timed, but for the tenth that took longest: others on the machine
  // stretch a few. 0 for none.
  std::int64_t mean_ns() const {
    std::array<std::int64_t, kSamples> samples;
    for (std::size_t i = 0; i < kSamples; ++i) samples[i] = samples_[i].load();
    const std::uint64_t taken = taken_.load();
    const auto many = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(taken, kSamples));
    const auto begin = samples.begin();
    std::sort(begin, begin + many);
    const std::ptrdiff_t counted = many - many / 10;
    if (counted == 0) return 0;
    return std::accumulate(begin, begin + counted, std::int64_t{0}) / counted;
  }
  void forget() {
    count_ = 0;
    taken_ = 0;
  }

 private:
  static constexpr std::uint64_t kEvery = 31;  // prime: steps have periods, too
  static constexpr std::size_t kSamples = 255;

  std::atomic<std::uint64_t> count_ = 0;
  std::atomic<std::uint64_t> taken_ = 0;
  std::array<std::atomic<std::int64_t>, kSamples> samples_ = {};
};

// ---- what is known

using Forward = std::shared_ptr<ForwardMemory>;

struct NotedStack {
  std::string frames;  // JSON
  std::int32_t module;
};

// Guarded by the GIL.
struct SiteTable {
  Depth depth = Depth::kNone;
  StackRules rules;
  Frames frames;
  std::unordered_map<Key, std::int32_t, KeyHash> index;
  std::unordered_map<std::string, std::int32_t> written;  // what is in the journal
  std::vector<NotedStack> noted;  // of each index
  std::vector<std::string> modules = {""};
  // Of the thread that made nodes last, and how many threads did: a GPU's backward pass
  // runs in a thread of autograd's own.
  Forward forward;
  int forwards = 0;
  std::unordered_map<const void*, int> numbers;  // of modules, by where they are
  std::unordered_map<const void*, PyObject*> known;  // weak references
  bool backward = false;    // a backward pass asked, since `gradients_noted`
  bool optimizers = false;  // one has stepped
};

// What requests need before they have the GIL, which most never take: Python's frames are
// read, and what they lead to is known to the thread.
struct SiteRules {
  std::atomic<std::uint64_t> generation = 0;  // of recordings
  std::atomic<bool> read = false;             // whether `frames_are_as_known`
  std::atomic<bool> sites = false;            // the depth is that of sites
  std::atomic<std::uint64_t (*)()> peek_sequence = nullptr;
  std::atomic<int (*)()> current_task = nullptr;
  std::atomic<std::int32_t> latest = -1;
};

// What a request is known by, at the depth of sites.
struct Asked {
  Place inner, users;
  int module, phase;
  bool operator==(const Asked&) const = default;
};
struct AskedHash {
  std::size_t operator()(const Asked& r) const {
    const auto more = static_cast<std::size_t>(r.module) * 8 +
                      static_cast<std::size_t>(r.phase);
    return (mixed(r.inner) ^ (mixed(r.users) >> 7) ^ more) * 0xD6E8FEB86659FD93u;
  }
};

// What the calling thread is doing, and what it knows.
struct Doing {
  std::vector<Entered> modules;
  Call step = {};               // what calls an optimizer's step, and hooks around it
  std::size_t step_within = 0;  // so many modules
  std::uint64_t generation = 0;
  Forward forward;
  std::uint64_t sequence = 0;  // as the request before saw it
  Place node_place = {};       // what made a node, outside of modules
  Walk walk;                   // keeps its memory
  Kinds kinds;
  FlatMap<Asked, std::int32_t, AskedHash> stacks;
};

}  // namespace memplan
