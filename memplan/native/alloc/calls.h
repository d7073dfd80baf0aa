// Calls whose requests are known beforehand: each is served at its place in an arena.
//
// A call runs on one thread, which is between `begin` and `end`. Requests of other
// threads, and those that differ from what is known, are left to the allocator beneath.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace memplan {

// A request, served `offset` bytes into the arena; if that is negative, not by the call.
// What lies beyond the arena is in the host: a block that the call lets the allocator
// beneath serve, in whose memory others lie before it is used.
struct PlacedRequest {
  std::uint64_t bytes;
  std::int64_t offset;
};

// What came of a call: requests that differed from those known, and blocks that a step
// took for itself and did not free, whose memory other values have now.
struct CallOutcome {
  std::uint64_t missed = 0;
  std::uint64_t kept = 0;
};

class Call {
 public:
  // A request of so many bytes and n more is no request: it says that step n begins; for
  // n one more than there are steps, that the next request is the host.
  static constexpr std::size_t kMark = std::size_t{1} << 50;

  // One that a step frees before it ends is `scratch` of its own.
  struct Step {
    std::vector<PlacedRequest> requests;
    std::vector<bool> scratch;
  };

  // The arena stays where it is as long as this, and as long as `alive`.
  Call(void* arena, std::size_t bytes, std::vector<Step> steps);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // The calling thread's requests are this call's, until `end` on the same thread.
  void begin();
  CallOutcome end();

  // The place of a request of the current thread, or null for the allocator beneath.
  void* serve(std::size_t bytes);
  // What the allocator beneath served instead.
  void served_beneath(void* block) {
    if (std::exchange(expects_host_, false)) host_ = static_cast<char*>(block);
  }
  // Blocks that were served and are not freed.
  std::int64_t alive() const { return alive_.load(); }

  // The current thread's, or null.
  static Call* current();
  // Whether a call served the block, which is then free. By any thread.
  static bool release(void* block);
  // See Replay::lock.
  static void lock();
  static void unlock();

 private:
  bool contains(const void* block) const {
    return block >= arena_ && block < arena_ + bytes_;
  }
  void mark(std::size_t step);
  void died(void* block);
  // Whether the block lay in the host, which has its memory again.
  bool returned(void* block);

  char* const arena_;
  const std::size_t bytes_;
  const std::vector<Step> steps_;
  const Step* step_ = nullptr;
  std::size_t next_ = 0;           // of the step's requests
  std::vector<void*> scratch_;     // of the step, not freed yet
  char* host_ = nullptr;
  bool expects_host_ = false;
  std::vector<void*> lent_;        // blocks in the host, not freed yet
  CallOutcome outcome_;
  Call* outer_ = nullptr;
  std::atomic<std::int64_t> alive_ = 0;
};

// Notes what the current thread asks for and frees, in order.
class RequestLog {
 public:
  struct Entry {
    std::uint64_t bytes;  // 0 for a block that is freed
    std::uintptr_t address;
  };

  void begin();
  std::vector<Entry> end();
  void note(std::uint64_t bytes, const void* block) {
    entries_.push_back({bytes, reinterpret_cast<std::uintptr_t>(block)});
  }

  // The current thread's, or null.
  static RequestLog* current();

 private:
  std::vector<Entry> entries_;
};

}  // namespace memplan
