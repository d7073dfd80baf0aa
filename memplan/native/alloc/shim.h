// The CPU allocator that stands before torch's own.
//
// It passes requests through, records them, or serves them from a plan. It is
// installed once and never removed: tensors carry its deleter to the end of the
// process. Nothing here is ever destroyed, for the same reason.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "alloc/c10.h"
#include "alloc/lanes.h"
#include "alloc/ledger.h"
#include "alloc/recorder.h"
#include "alloc/replay.h"
#include "alloc/serving.h"

namespace memplan {

// The arenas of all plans so far, and which of them a block lies in. Those of earlier plans
// stay: their blocks may still be alive.
class Replays {
 public:
  // Whether so many more may be added.
  bool has_room(std::size_t count) const { return count <= kMost - count_.load(); }
  // There must be room; one thread at a time. Blocks in these are known from now on.
  void add(const std::vector<Replay*>& replays) {
    std::size_t count = count_.load();
    for (Replay* replay : replays) replays_[count++].store(replay);
    count_.store(count, std::memory_order_release);
  }
  // The one whose arena the block lies in, or null. By any thread, without a lock.
  Replay* owner(const void* pointer) const {
    for (std::size_t i = count_.load(std::memory_order_acquire); i-- > 0;) {
      Replay* replay = replays_[i].load(std::memory_order_relaxed);
      if (replay->contains(pointer)) return replay;
    }
    return nullptr;
  }
  // All that there are, in the order added, and back again: around a fork.
  void lock() {
    locked_ = count_.load();
    for (std::size_t i = 0; i < locked_; ++i) replays_[i].load()->lock();
  }
  void unlock() {
    for (std::size_t i = locked_; i-- > 0;) replays_[i].load()->unlock();
  }

 private:
  static constexpr std::size_t kMost = 256;
  std::array<std::atomic<Replay*>, kMost> replays_ = {};
  std::atomic<std::size_t> count_ = 0;
  std::size_t locked_ = 0;
};

// What glibc keeps of the memory that programs ask for beside their tensors. Any thread, at
// any time.
class Scratch {
 public:
  // With the tensors in the arena, glibc serves the operators' scratch: some MiB that it
  // would hand back and fault in again in every step. Has it keep them where `replay`
  // pays; not before, as glibc with all tensors keeps more than by its own thresholds,
  // which are gone then. Where the plan was given up later, has it keep about what its
  // own would have been by then.
  void look_after(Replay& replay);
  // Free pages go back to the system.
  static void hand_back();

 private:
  static constexpr std::uint64_t kOwn = 0;
  // Bytes from which on blocks are mapped one by one; glibc's own until it is set.
  std::atomic<std::uint64_t> mapped_ = kOwn;
};

enum class Mode : int { kPass, kRecord, kReplay };

// What the shim knows: the allocator that it stands before, what it does with requests, and
// the books that it keeps.
struct State {
  c10::Symbols symbols;
  c10::Allocator* base = nullptr;
  c10::Deleter base_delete = nullptr;
  std::atomic<Mode> mode = Mode::kPass;
  // While there are any, requests pass through: they are neither recorded nor matched
  // (profile-guided memory optimization, section 4.3).
  Interruptions interruptions;
  // Requests that passed through for this reason since replay was started.
  std::atomic<std::uint64_t> interrupted_requests = 0;

  Recorder recorder;

  Replays replays;
  std::atomic<Replay*> replay = nullptr;
  std::atomic<Lanes*> lanes = nullptr;  // in place of the one replay
  Scratch scratch;
  Ledger ledger;  // of tensors born since a plan was first served
  EventLog log;
  Turns turns;  // of a plan without marks, since it was applied
};

// Never destroyed: frees arrive until the process is gone.
State& state();

// Installs the shim before the allocator of the loaded library at `path`; once is
// enough, again is harmless. Returns an empty string, or why it cannot be done.
std::string install(const std::string& path);
// Only checks whether it could be installed, and changes nothing.
std::string check(const std::string& path);

// From now on, records every request into `journal`, which lives for ever, or, unless
// `requests`, only steps and what `observation` is told. `capture` may be null. After
// `limit` events, if it is not 0, no more are recorded.
void start_recording(Journal* journal, StackCapture capture, std::uint64_t limit,
                     bool requests = true);
// For an allocator beside this one to tell of its requests.
const Observation* observation();
// Stops, writes the end block (JSON) and closes the journal.
RecordingEnd stop_recording(const std::string& end);

// From now on, serves requests as `replay` says; it lives for ever. False if there were
// too many before it.
bool start_replay(Replay* replay);
// The same for threads that each follow a plan of their own, in arenas of their own.
bool start_lanes(const std::vector<Replay*>& replays);
// The program begins its next step; `kind` is written to the recording.
void mark_step(std::uint8_t kind);

}  // namespace memplan
