// Who asked: Python call stacks, interned, and what ran there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "alloc/journal.h"
#include "alloc/recorder.h"

struct _object;  // PyObject, for those who do not include Python

namespace memplan {

// What is noted of a stack: the one line of the program's own that asked, or all calls.
enum class Depth : int { kNone, kSite, kAll };

// As `Phase` of memplan.trace.stacks.
enum Phase : int { kUnknown, kOutside, kForward, kBackward, kOptimizer };

struct StackRules {
  // Frames at and below the first one whose file is this are left out: memplan's own.
  std::string runner;
  // Files that begin with one of these are not the program's own.
  std::vector<std::string> foreign;
  // torch's library whose sequence numbers tie a backward pass to its forward pass.
  std::string torch_library;
  // Called for each new place as (code, offset of the instruction): the operator's name.
  _object* describe = nullptr;
  // Called while a backward pass runs: torch's node that runs, or None.
  _object* current_node = nullptr;
  // Called where one may run: the number of the backward pass that this thread runs, or -1.
  _object* current_task = nullptr;
};

// Forgets what was seen so far; takes references to the rules' objects. With the GIL.
StackCapture begin_stacks(Depth depth, StackRules rules);

// The calling thread's stack, as an index into the journal's table; -1 where no Python
// runs. What a backward pass asks for has the stack of the forward pass that made it
// necessary. A thread without any Python works for whoever was noted last. Takes the GIL
// for what the thread has not asked for before, and for backward passes.
std::int32_t capture_stack(Journal& journal);

// How often, since `begin_stacks`, all threads asked and called modules, and what one took
// in the mean of some that were timed.
struct SitesCost {
  std::uint64_t requests;
  std::int64_t request_ns;
  std::uint64_t calls;
  std::int64_t call_ns;
};
SitesCost sites_cost();

// An outermost module whose parts have their names is known, and an optimizer that was met,
// until it is gone. Whether a backward pass asked for memory since `gradients_noted`, and no
// optimizer ever steps, which would note gradients. With the GIL.
void know(_object* object);
bool is_known(_object* object);
bool gradients_wait();
void gradients_noted();

// A stack without calls, for what belongs to a module; -1 for module 0. With the GIL.
std::int32_t stack_of_module(Journal& journal, int module);

// The number of a new name; with the GIL. `module` has it, unless that is null: an object
// that is known by where it is.
int name_module(std::string name, const void* module);
// The calling thread enters a module, known or not, and leaves the one entered last in
// the recording that `enter_module` returned. Whether it is in any.
std::uint64_t enter_module(const void* module);
void leave_module(std::uint64_t recording);
bool in_module();
// It begins or ends an optimizer's step; above: how many Python calls lie between, where
// it begins, and what calls the step.
void set_optimizer(bool runs, std::size_t above = 0);

}  // namespace memplan
