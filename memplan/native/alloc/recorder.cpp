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

void note_request(std::size_t bytes) {
  digest = ((digest ^ bytes) + 1) * 0x9E3779B97F4A7C15u;
}

std::uint64_t take_digest() { return std::exchange(digest, 0); }

}  // namespace memplan
