// The recorder's append-only journal.
//
// Events go through a ring that any thread fills without a lock, and that a thread of
// its own empties into the file, four times a second or whenever it is half full, as
// checksummed blocks: what a killed process leaves behind is readable up to the last
// whole block. When the disk falls behind, the program waits; no event is dropped.
//
// Layout, little-endian: 8 bytes of magic; then blocks of u32 kind, u32 length, u32
// CRC-32 of kind, length and payload, payload.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace memplan {

struct Event {
  std::int64_t time_ns;
  std::uint64_t address;
  std::int64_t size;
  std::int32_t thread;
  std::int32_t stack;
  std::uint8_t action;
  std::uint8_t mark;
  std::uint16_t place;  // 0: the CPU; or the k-th that a kPlace told of, from 1
  std::uint32_t turn;  // the ring's own: which pass of the ring the event is from
};
static_assert(sizeof(Event) == 40);

// As `Action` of memplan.trace.trace; and kPlace, of journals alone: a GPU (`size`, its
// index) and a stream of it (`address`, its handle) that later events are of.
enum Action : std::uint8_t {
  kAlloc = 0,
  kFree = 1,
  kStep = 2,
  kFreeRequested = 3,
  kLabel = 4,
  kOom = 5,
  kSegmentAlloc = 6,
  kSegmentFree = 7,
  kPlace = 8,
};
enum BlockKind : std::uint32_t { kInfo = 1, kEvents = 2, kStacks = 3, kEnd = 4 };

class Journal {
 public:
  // Takes over `descriptor`; writes the magic and the info block (JSON) at once.
  Journal(int descriptor, std::string_view info);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Any thread, at any time; after `close` the event is ignored.
  void append(const Event& event);
  // One more stack for the table, as JSON: its frames, and what ran there.
  void append_stack(std::string json);

  // Writes all that is waiting and the end block (JSON), and closes the file.
  // Returns 0, or the errno that stopped the writing, now or earlier.
  int close(std::string_view end);

  // Events that were appended, and those that reached the file.
  std::uint64_t seen() const { return head_; }
  std::uint64_t written() const { return written_; }

 private:
  void run();
  std::uint64_t ready_until(std::uint64_t from) const;
  void drain();
  void write_stacks();
  bool write_block(std::uint32_t kind, const void* data, std::size_t bytes);
  void write_all(const void* data, std::size_t bytes);

  int descriptor_;
  int error_ = 0;  // the writer's
  std::uint64_t written_ = 0;
  Event* ring_;  // never unmapped: a thread may be late
  // On lines of their own: one is written by the program, the other by the writer.
  alignas(64) std::atomic<std::uint64_t> head_ = 0;
  alignas(64) std::atomic<std::uint64_t> tail_ = 0;
  alignas(64) std::atomic<bool> closing_ = false;
  std::vector<std::string> stacks_;
  std::mutex mutex_;  // of stacks_
  std::condition_variable wake_;
  std::thread writer_;
};

std::int64_t now_ns();

}  // namespace memplan
