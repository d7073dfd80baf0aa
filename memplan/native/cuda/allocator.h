// What stands in the slots of torch's native CUDA allocator.
//
// Put there once, and never removed: tensors carry our deleter to the end of the process.
// Nothing here is ever destroyed, for the same reason.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "alloc/journal.h"
#include "cuda/arenas.h"

namespace memplan::cuda {

constexpr int kMaxDevices = 64;

// Functions beside `allocate` that have to be ours; where they lie is found by watching
// the slots while they are called. A call may pass through two slots, as torch has two
// of the same name.
enum class Role : int { kRecordStream, kBeginPool, kEndPool, kRoles };
constexpr std::size_t kMostOfARole = 3;

// Finds the allocator of the loaded library at `path` and only looks at it; or puts a
// copy of its virtual table in place, too, which still calls torch's own functions.
// Returns "" or why it cannot be done.
std::string check(const char* path);
std::string prepare(const char* path);
// After `prepare`: how many slots there are, and whether calls pass through one.
std::size_t slot_count();
void watch(std::size_t slot);
std::size_t stop_watching();
// From now on our function is called in the slot, too. False if there are too many.
bool take_slot(Role role, std::size_t slot);
// From now on requests come to us. Needs a slot of every role; returns "" or which lacks.
std::string install();
bool installed();

// The device's arenas, made when first asked for; null for a device that cannot be.
Arenas* arenas_of(int device);
// Those that are there.
std::vector<Arenas*> all_arenas();
// Whether an arena of so many bytes may be made now; hot: see Arenas::Arena.
// Called with no lock held.
using Permission = bool (*)(int device, unsigned rank, std::uint64_t bytes, bool hot);
// Who is asked from now on; null: nobody, and it may.
void ask(Permission permission);
// Requests are served from the arenas, or all by torch.
void serve(bool on);
// Until as many calls of `resume`, torch serves all.
void interrupt();
bool resume();
// Heed these interruptions, too, which are counted elsewhere, for ever.
void heed(const std::atomic<int>* elsewhere);

// The program begins its next step.
void next_step(std::uint8_t mark);

// Keeps the events to come of the stream that is `rank` on `device`, and hands them over.
void open_log(int device, unsigned rank);
std::vector<memplan::Event> take_log();

}  // namespace memplan::cuda
