#include "alloc/recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

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
  journal_.store(journal);
}

void Recorder::record(Action action, const void* pointer, std::size_t bytes,
                      std::uint8_t mark) {
  Journal* journal = journal_.load(std::memory_order_acquire);
  if (journal == nullptr) return;
  Event event = event_of(action, pointer, bytes, mark);
  if (limit_ != 0 && journal->seen() >= limit_) return;
  const bool asked = action == kAlloc || action == kOom;
  if (asked && capture_ != nullptr) event.stack = capture_(*journal);
  journal->append(event);
}

void Recorder::label(std::uint64_t address, std::size_t code, const StackOf& stack_of) {
  Journal* journal = journal_.load(std::memory_order_acquire);
  if (journal == nullptr || (limit_ != 0 && journal->seen() >= limit_)) return;
  Event event = event_of(kLabel, reinterpret_cast<const void*>(address), code);
  event.stack = stack_of(*journal);
  journal->append(event);
}

std::uint64_t Recorder::events() const {
  const Journal* journal = journal_.load();
  return journal == nullptr ? 0 : journal->seen();
}

RecordingEnd Recorder::stop(const std::string& end) {
  Journal* journal = journal_.exchange(nullptr);
  if (journal == nullptr) return {0, 0, 0};
  const int error = journal->close(end);
  return {error, journal->seen(), journal->written()};
}

void note_request(std::size_t bytes) {
  digest = ((digest ^ bytes) + 1) * 0x9E3779B97F4A7C15u;
}

std::uint64_t take_digest() { return std::exchange(digest, 0); }

}  // namespace memplan
