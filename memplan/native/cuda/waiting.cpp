#include "cuda/waiting.h"

#include <utility>

namespace memplan::cuda {
namespace {

constexpr unsigned kDisableTiming = 2;  // cudaEventDisableTiming: it is faster
constexpr Error kNotReady = 600;

}  // namespace

void Waiting::fail() {
  ++failures_;
  runtime_.last_error();  // torch must not find it and think it its own
}

Event Waiting::new_event() {
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

bool Waiting::arm(void* address, State& state) {
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

void Waiting::add(void* address, std::vector<Stream> users, bool now) {
  State& state =
      states_.emplace(address, State{std::move(users), 0}).first->second;
  missing_.push_back(address);
  if (now && arm(address, state)) missing_.pop_back();
}

std::vector<void*> Waiting::collect() {
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

}  // namespace memplan::cuda
