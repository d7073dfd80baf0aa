// What a program asks for, event by event, into a journal.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
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

class Recorder {
 public:
  // From now on `record` writes into `journal`, which lives for ever; after `limit`
  // events, if it is not 0, no more. `capture` may be null.
  void start(Journal* journal, StackCapture capture, std::uint64_t limit);
  void record(Action action, const void* pointer, std::size_t bytes,
              std::uint8_t mark = 0);
  // The block at `address` holds what the Category of this code says; device: a GPU's, or
  // -1 for the CPU.
  void label(std::uint64_t address, int device, std::size_t code, const StackOf& stack_of);
  std::int32_t stack();
  void observe(const Observed& seen);
  // How many there are so far; 0 when nothing is being recorded.
  std::uint64_t events() const;
  // Writes the end block (JSON) and closes the journal.
  RecordingEnd stop(const std::string& end);
  // Leaves the journal to whom it belongs: this is a forked child.
  void let_go() { journal_.store(nullptr); }

 private:
  using Place = std::pair<std::int32_t, std::uint64_t>;  // a GPU, and its stream

  bool full(const Journal& journal) const;
  std::uint16_t place_of(Journal& journal, const Place& place);

  // A closed journal is kept: another thread may be about to append.
  std::atomic<Journal*> journal_ = nullptr;
  StackCapture capture_ = nullptr;
  std::uint64_t limit_ = 0;  // events to record; 0: all
  std::mutex mutex_;         // of places_
  std::map<Place, std::uint16_t> places_;
  std::atomic<std::uint64_t> lost_ = 0;  // of places beyond what an event can name
};

// A request of the calling thread, for its digest.
void note_request(std::size_t bytes);
// Of the requests that the calling thread made since it last asked: equal for equal
// sizes in the same order, and 0 for none.
std::uint64_t take_digest();

}  // namespace memplan
