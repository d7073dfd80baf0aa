// The CPU allocator that stands before torch's own.
//
// It passes requests through, records them, or serves them from a plan. It is
// installed once and never removed: tensors carry its deleter to the end of the
// process. Nothing here is ever destroyed, for the same reason.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "alloc/lanes.h"
#include "alloc/ledger.h"
#include "alloc/recorder.h"
#include "alloc/replay.h"
#include "alloc/turns.h"

namespace memplan {

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
// How many there are so far; 0 when nothing is being recorded.
std::uint64_t recorded_events();
// What the block at this address of a GPU's memory, or, for -1, the CPU's, holds became
// known: the code of a Category.
void label_block(std::uint64_t address, int device, std::size_t code, StackOf stack_of);
// Stops, writes the end block (JSON) and closes the journal.
RecordingEnd stop_recording(const std::string& end);

// From now on, serves requests as `replay` says; it lives for ever. False if there were
// too many before it.
bool start_replay(Replay* replay);
// The same for threads that each follow a plan of their own, in arenas of their own.
bool start_lanes(const std::vector<Replay*>& replays);
// Requests that no arena was there for, since `start_lanes`.
Counts outside_lanes();
// Passes requests through; blocks alive in an arena stay where they are.
void pass_through();

// Until as many calls of `resume`, requests pass through: they are neither recorded
// nor matched (profile-guided memory optimization, section 4.3).
void interrupt();
// False if there was nothing to resume from.
bool resume();
// How many interruptions are in force, for what serves requests beside this.
const std::atomic<int>* interruptions();
// Requests that passed through for this reason since replay was started.
std::uint64_t interrupted_requests();

// What tensors take up, of those born since a plan was first served.
TensorBytes tensor_bytes();

// While a plan is served: keep the events to come, and hand them over.
void open_log();
std::vector<Event> take_log();

// The program begins its next step; `kind` is written to the recording.
void mark_step(std::uint8_t kind);
// Of a plan without marks, the steps that requests showed since it was applied.
Turns& turns();

}  // namespace memplan
