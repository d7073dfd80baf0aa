// What a program asks for, event by event, into a journal.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "alloc/journal.h"

namespace memplan {

// Captures the calling thread's Python stack, hands new ones to the journal, and
// returns the stack's index, or -1.
using StackCapture = std::int32_t (*)(Journal&);

// The index of a stack in the journal's table, made there if it is new.
using StackOf = std::function<std::int32_t(Journal&)>;

// An event of a GPU's allocator, as whoever stands there tells of it. The layout is part
// of what two of memplan's libraries agree on.
struct Observed {
  std::uint64_t address;  // of a request that failed: what the device had free
  std::uint64_t size;
  std::uint64_t stream;  // its handle
  std::int32_t device;
  std::int32_t stack;
  Action action;
};

// What it calls: the calling thread's stack, to be noted of its next request (-1: none),
// without any lock of the allocator's held; and the event itself, with them or without.
struct Observation {
  std::int32_t (*stack)();
  void (*observe)(const Observed*);
};

struct RecordingEnd {
  int error;  // errno, or 0
  std::uint64_t seen;
  std::uint64_t written;
};

// An event of the calling thread, now; without a stack.
Event event_of(Action action, const void* pointer, std::size_t bytes,
               std::uint8_t mark = 0);

// A request of the calling thread, for its digest.
void note_request(std::size_t bytes);
// Of the requests that the calling thread made since it last asked: equal for equal
// sizes in the same order, and 0 for none.
std::uint64_t take_digest();

class Recorder {
 public:
  // From now on `record` writes into `journal`, which lives for ever; after `limit`
  // events, if it is not 0, no more. `capture` may be null.
  void start(Journal* journal, StackCapture capture, std::uint64_t limit) {
    capture_ = capture;
    limit_ = limit;
    {
      std::lock_guard lock(mutex_);
      places_.clear();
    }
    lost_ = 0;
    journal_.store(journal);
  }
  void record(Action action, const void* pointer, std::size_t bytes,
              std::uint8_t mark = 0) {
    Journal* journal = journal_.load(std::memory_order_acquire);
    if (journal == nullptr) return;
    Event event = event_of(action, pointer, bytes, mark);
    if (full(*journal)) return;
    const bool asked = action == kAlloc || action == kOom;
    if (asked && capture_ != nullptr) event.stack = capture_(*journal);
    journal->append(event);
  }
  // The block at `address` holds what the Category of this code says; device: a GPU's, or
  // -1 for the CPU.
  void label(std::uint64_t address, int device, std::size_t code,
             const StackOf& stack_of) {
    Journal* journal = journal_.load(std::memory_order_acquire);
    if (journal == nullptr || full(*journal)) return;
    // What tells of the place comes before the event, in time, too.
    const std::uint16_t place = device < 0 ? 0 : place_of(*journal, {device, 0});
    if (device >= 0 && place == 0) return;
    Event event = event_of(kLabel, reinterpret_cast<const void*>(address), code);
    event.stack = stack_of(*journal);
    event.place = place;
    journal->append(event);
  }
  std::int32_t stack() {
    Journal* journal = journal_.load(std::memory_order_acquire);
    if (journal == nullptr || capture_ == nullptr || full(*journal)) return -1;
    return capture_(*journal);
  }
  void observe(const Observed& seen) {
    Journal* journal = journal_.load(std::memory_order_acquire);
    if (journal == nullptr || full(*journal)) return;
    const std::uint16_t place = place_of(*journal, {seen.device, seen.stream});
    if (place == 0) {
      ++lost_;
      return;
    }
    const auto* address = reinterpret_cast<const void*>(seen.address);
    Event event = event_of(seen.action, address, seen.size);
    event.stack = seen.stack;
    event.place = place;
    if (seen.action == kAlloc) note_request(seen.size);
    journal->append(event);
  }
  // How many there are so far; 0 when nothing is being recorded.
  std::uint64_t events() const {
    const Journal* journal = journal_.load();
    return journal == nullptr ? 0 : journal->seen();
  }
  // Writes the end block (JSON) and closes the journal.
  RecordingEnd stop(const std::string& end) {
    Journal* journal = journal_.exchange(nullptr);
    if (journal == nullptr) return {0, 0, 0};
    const int error = journal->close(end);
    return {error, journal->seen() + lost_, journal->written()};
  }
  // Leaves the journal to whom it belongs: this is a forked child.
  void let_go() { journal_.store(nullptr); }

 private:
  using Place = std::pair<std::int32_t, std::uint64_t>;  // a GPU, and its stream

  bool full(const Journal& journal) const {
    return limit_ != 0 && journal.seen() >= limit_;
  }
  // 0 if there are more than can be told apart. Whoever else gets its number does so after
  // the event that tells of it.
  std::uint16_t place_of(Journal& journal, const Place& place) {
    constexpr std::size_t kMost = std::numeric_limits<std::uint16_t>::max();
    std::lock_guard lock(mutex_);
    if (const auto known = places_.find(place); known != places_.end()) {
      return known->second;
    }
    if (places_.size() >= kMost) return 0;
    const auto number = static_cast<std::uint16_t>(places_.size() + 1);
    places_.emplace(place, number);
    const auto* stream = reinterpret_cast<const void*>(place.second);
    journal.append(event_of(kPlace, stream, static_cast<std::size_t>(place.first)));
    return number;
  }

  // A closed journal is kept: another thread may be about to append.
  std::atomic<Journal*> journal_ = nullptr;
  StackCapture capture_ = nullptr;
  std::uint64_t limit_ = 0;  // events to record; 0: all
  std::mutex mutex_;         // of places_
  std::map<Place, std::uint16_t> places_;
  std::atomic<std::uint64_t> lost_ = 0;  // of places beyond what an event can name
};

}  // namespace memplan
