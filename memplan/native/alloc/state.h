// What the shim knows: the allocator that it stands before, what it does with requests,
// and the books that it keeps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/c10.h"
#include "alloc/eventlog.h"
#include "alloc/interruptions.h"
#include "alloc/lanes.h"
#include "alloc/ledger.h"
#include "alloc/recorder.h"
#include "alloc/replays.h"
#include "alloc/scratch.h"
#include "alloc/turns.h"

namespace memplan {

enum class Mode : int { kPass, kRecord, kReplay };

struct State {
  c10::Symbols symbols;
  c10::Allocator* base = nullptr;
  c10::Deleter base_delete = nullptr;
  std::atomic<Mode> mode = Mode::kPass;
  // Interruptions in force; while there are any, requests pass through.
  Interruptions interruptions;
  std::atomic<std::uint64_t> interrupted_requests = 0;

  Recorder recorder;

  Replays replays;
  std::atomic<Replay*> replay = nullptr;
  std::atomic<Lanes*> lanes = nullptr;  // in place of the one replay
  Scratch scratch;
  Ledger ledger;
  EventLog log;
  Turns turns;  // of a plan without marks
};

// Never destroyed: frees arrive until the process is gone.
State& state();

// Into the log that is kept while a plan is served.
void log_event(Action action, const void* pointer, std::size_t bytes,
               std::uint8_t mark = 0);

}  // namespace memplan
