// What a program asks for, event by event, into a journal.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "alloc/journal.h"

namespace memplan {

// Captures the calling thread's Python stack, hands new ones to the journal, and
// returns the stack's index, or -1.
using StackCapture = std::int32_t (*)(Journal&);

// The index of a stack in the journal's table, made there if it is new.
using StackOf = std::function<std::int32_t(Journal&)>;

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
  // The block at `address` holds what the Category of this code says.
  void label(std::uint64_t address, std::size_t code, const StackOf& stack_of);
  // How many there are so far; 0 when nothing is being recorded.
  std::uint64_t events() const;
  // Writes the end block (JSON) and closes the journal.
  RecordingEnd stop(const std::string& end);
  // Leaves the journal to whom it belongs: this is a forked child.
  void let_go() { journal_.store(nullptr); }

 private:
  // A closed journal is kept: another thread may be about to append.
  std::atomic<Journal*> journal_ = nullptr;
  StackCapture capture_ = nullptr;
  std::uint64_t limit_ = 0;  // events to record; 0: all
};

// A request of the calling thread, for its digest.
void note_request(std::size_t bytes);
// Of the requests that the calling thread made since it last asked: equal for equal
// sizes in the same order, and 0 for none.
std::uint64_t take_digest();

}  // namespace memplan
