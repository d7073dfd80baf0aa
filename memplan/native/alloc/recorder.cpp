#include "alloc/recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <limits>
#include <utility>

namespace memplan {
namespace {

std::int32_t thread_id() {
  thread_local const auto id = static_cast<std::int32_t>(syscall(SYS_gettid));
  return id;
}

thread_local std::uint64_t digest = 0;

}  // namespace

Event event_of(Action action, const void* pointer, std::size_t bytes,
               std::uint8_t mark) {
  Event event{};
  event.address = reinterpret_cast<std::uint64_t>(pointer);
  event.size = static_cast<std::int64_t>(bytes);
  event.thread = thread_id();
  event.action = action;
  event.mark = mark;
  event.stack = -1;
  event.time_ns = now_ns();
  return event;
}

void Recorder::start(Journal* journal, StackCapture capture, std::uint64_t limit) {
  capture_ = capture;
  limit_ = limit;
  {
    std::lock_guard lock(mutex_);
    places_.clear();
  }
  lost_ = 0;
  journal_.store(journal);
}

bool Recorder::full(const Journal& journal) const {
  return limit_ != 0 && journal.seen() >= limit_;
}

void Recorder::record(Action action, const void* pointer, std::size_t bytes,
                      std::uint8_t mark) {
  Journal* journal = journal_.load(std::memory_order_acquire);
  if (journal == nullptr) return;
  Event event = event_of(action, pointer, bytes, mark);
  if (full(*journal)) return;
  const bool asked = action == kAlloc || action == kOom;
  if (asked && capture_ != nullptr) event.stack = capture_(*journal);
  journal->append(event);
}

void Recorder::label(std::uint64_t address, int device, std::size_t code,
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

std::int32_t Recorder::stack() {
  Journal* journal = journal_.load(std::memory_order_acquire);
  if (journal == nullptr || capture_ == nullptr || full(*journal)) return -1;
  return capture_(*journal);
}

void Recorder::observe(const Observed& seen) {
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

// 0 if there are more than can be told apart. Whoever else gets its number does so after
// the event that tells of it.
std::uint16_t Recorder::place_of(Journal& journal, const Place& place) {
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

std::uint64_t Recorder::events() const {
  const Journal* journal = journal_.load();
  return journal == nullptr ? 0 : journal->seen();
}

RecordingEnd Recorder::stop(const std::string& end) {
  Journal* journal = journal_.exchange(nullptr);
  if (journal == nullptr) return {0, 0, 0};
  const int error = journal->close(end);
  return {error, journal->seen() + lost_, journal->written()};
}

void note_request(std::size_t bytes) {
  digest = ((digest ^ bytes) + 1) * 0x9E3779B97F4A7C15u;
}

std::uint64_t take_digest() { return std::exchange(digest, 0); }

}  // namespace memplan
