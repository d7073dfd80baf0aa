// Freed blocks that other streams may still be using.
//
// At its free, an event is recorded on each stream that used the block; only when all
// have completed is its memory free. Where no event can be recorded (a capture is
// under way, CUDA refuses), that is made up for later: a later event only waits longer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "cuda/torch.h"

namespace memplan::cuda {

class Waiting {
 public:
  explicit Waiting(const Runtime& runtime) : runtime_(runtime) {}

  // The block at `address` was freed; `users` (not empty) may still be using it. The
  // events are recorded at once if `now`, or else by the next `collect`.
  void add(void* address, std::vector<Stream> users, bool now);
  // Records what events are still missing, and returns the blocks that no stream
  // uses any more. Not to be called while a capture is under way.
  std::vector<void*> collect();

  std::size_t blocks() const { return states_.size(); }
  std::uint64_t failures() const { return failures_; }

 private:
  struct State {
    std::vector<Stream> unarmed;  // streams that lack an event
    std::size_t events = 0;       // recorded, and not known to have completed
  };
  struct Mark {
    Event event;
    void* address;
  };

  bool arm(void* address, State& state);
  Event new_event();
  void fail();

  const Runtime& runtime_;
  std::unordered_map<void*, State> states_;
  std::map<Stream, std::deque<Mark>> marks_;  // in the order they were recorded
  std::vector<void*> missing_;                // addresses with unarmed streams
  std::vector<Event> spare_;
  std::uint64_t failures_ = 0;
};

}  // namespace memplan::cuda
