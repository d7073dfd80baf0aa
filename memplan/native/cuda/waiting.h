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
#include <utility>
#include <vector>

#include "cuda/torch.h"

namespace memplan::cuda {

class Waiting {
 public:
  explicit Waiting(const Runtime& runtime) : runtime_(runtime) {}

  // The block at `address` was freed; `users` (not empty) may still be using it. The
  // events are recorded at once if `now`, or else by the next `collect`.
  void add(void* address, std::vector<Stream> users, bool now) {
    State& state = states_.emplace(address, State{std::move(users), 0}).first->second;
    missing_.push_back(address);
    if (now && arm(address, state)) missing_.pop_back();
  }
  // Records what events are still missing, and returns the blocks that no stream
  // uses any more. Not to be called while a capture is under way.
  std::vector<void*> collect() {
    std::vector<void*> still;
    for (void* address : missing_) {
      if (!arm(address, states_.at(address))) still.push_back(address);
    }
    missing_ = std::move(still);
    std::vector<void*> done;
    for (auto& [stream, marks] : marks_) {
      while (!marks.empty()) {
        const Error found = runtime_.event_query(marks.front().event);
        if (found != kSuccess) {
          if (found == kNotReady) {
            runtime_.last_error();
          } else {
            fail();
          }
          break;  // those recorded after it have not completed either
        }
        const Mark mark = marks.front();
        spare_.push_back(mark.event);
        marks.pop_front();
        State& state = states_.at(mark.address);
        if (--state.events > 0 || !state.unarmed.empty()) continue;
        done.push_back(mark.address);
        states_.erase(mark.address);
      }
    }
    return done;
  }

  std::size_t blocks() const { return states_.size(); }
  std::uint64_t failures() const { return failures_; }

 private:
  static constexpr unsigned kDisableTiming = 2;  // cudaEventDisableTiming: it is faster
  static constexpr Error kNotReady = 600;

  struct State {
    std::vector<Stream> unarmed;  // streams that lack an event
    std::size_t events = 0;  // recorded, and not known to have completed
  };
  struct Mark {
    Event event;
    void* address;
  };

  bool arm(void* address, State& state) {
    while (!state.unarmed.empty()) {
      const Stream stream = state.unarmed.back();
      int capture = 0;
      if (runtime_.is_capturing(stream, &capture) != kSuccess) {
        runtime_.last_error();
        return false;
      }
      if (capture != 0) return false;
      std::deque<Mark>& marks = marks_[stream];
      marks.push_back({nullptr, address});
      const Event event = new_event();
      if (event == nullptr) {
        marks.pop_back();
        return false;
      }
      if (runtime_.event_record(event, stream) != kSuccess) {
        fail();
        marks.pop_back();
        spare_.push_back(event);
        return false;
      }
      marks.back().event = event;
      ++state.events;
      state.unarmed.pop_back();
    }
    return true;
  }
  Event new_event() {
    if (!spare_.empty()) {
      const Event event = spare_.back();
      spare_.pop_back();
      return event;
    }
    Event event = nullptr;
    if (runtime_.event_create(&event, kDisableTiming) == kSuccess) return event;
    fail();
    return nullptr;
  }
  void fail() {
    ++failures_;
    runtime_.last_error();  // torch must not find it and think it its own
  }

  const Runtime& runtime_;
  std::unordered_map<void*, State> states_;
  std::map<Stream, std::deque<Mark>> marks_;  // in the order they were recorded
  std::vector<void*> missing_;  // addresses with unarmed streams
  std::vector<Event> spare_;
  std::uint64_t failures_ = 0;
};

}  // namespace memplan::cuda
