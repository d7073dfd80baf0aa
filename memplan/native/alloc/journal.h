// The recorder's append-only journal.
//
// Events are collected in memory under a mutex and written by a thread of its own,
// four times a second or every 64 k events, as checksummed blocks: what a killed
// process leaves behind is readable up to the last whole block.
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
  std::uint8_t padding[6];
};
static_assert(sizeof(Event) == 40);

enum Action : std::uint8_t { kAlloc = 0, kFree = 1, kStep = 2 };
enum BlockKind : std::uint32_t { kInfo = 1, kEvents = 2, kStacks = 3, kEnd = 4 };

class Journal {
 public:
  // Takes over `descriptor`; writes the magic and the info block (JSON) at once.
  Journal(int descriptor, std::string_view info);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Any thread, at any time; after `close` the event is counted and dropped.
  void append(const Event& event);
  // One more stack for the table, as a JSON array of frames.
  void append_stack(std::string json);

  // Writes all that is waiting and the end block (JSON), and closes the file.
  // Returns 0, or the errno that stopped the writing, now or earlier.
  int close(std::string_view end);

  // Events that were appended, and those that reached the file.
  std::uint64_t seen() const { return seen_; }
  std::uint64_t written() const { return written_; }

 private:
  void run();
  void flush(std::unique_lock<std::mutex>& lock);
  void write_stacks(const std::vector<std::string>& stacks);
  bool write_block(std::uint32_t kind, const void* data, std::size_t bytes);
  void write_all(const void* data, std::size_t bytes);

  int descriptor_;
  std::atomic<int> error_ = 0;
  bool closing_ = false;
  std::uint64_t seen_ = 0;
  std::uint64_t written_ = 0;
  std::vector<Event> waiting_;
  std::vector<Event> spare_;  // the writer's; keeps its memory between blocks
  std::vector<std::string> stacks_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread writer_;
};

std::int64_t now_ns();

}  // namespace memplan
