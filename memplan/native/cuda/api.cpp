// The library's C interface, for Python to call; torch calls what stands in the slots. A
// message returned is null when all went well.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/allocator.h"
#include "cuda/observer.h"

#define MEMPLAN_API extern "C" __attribute__((visibility("default")))

namespace memplan::cuda {
namespace {

// The message stays valid until the thread's next one.
const char* told(std::string message) {
  if (message.empty()) return nullptr;
  thread_local std::string last;
  last = std::move(message);
  return last.c_str();
}

// As one list, separated by commas: the stats, each counter, and of the hot steps alone.
std::string stat_names() {
  std::string names = kStatNames;
  for (const char* prefix : {",", ",hot_"}) {
    for (const auto& [name, counter] : kCounters) (names += prefix) += name;
  }
  return names;
}

struct PlanArrays {
  const std::int64_t* sizes;
  const std::int64_t* offsets;
  std::size_t count;
  const std::int64_t* starts;
  const bool* elastic;
  std::size_t steps;
  std::size_t loop_begin;
  std::size_t loop_end;
  std::uint64_t arena_bytes;
  bool unmarked;
  const bool* brief;  // null: every request lies at its offset
  std::uint64_t reserved;  // see Arenas::load
};

Table table_from(const PlanArrays& plan) {
  const std::uint64_t bytes = round_up(plan.arena_bytes, kGranularity);
  return table_of({.sizes = {plan.sizes, plan.count},
                   .offsets = {plan.offsets, plan.count},
                   .sparse = {},
                   .brief = {plan.brief, plan.brief == nullptr ? 0 : plan.count},
                   .starts = {plan.starts, plan.steps},
                   .elastic = {plan.elastic, plan.steps},
                   .loop_begin = plan.loop_begin,
                   .loop_end = plan.loop_end,
                   .arena_bytes = bytes,
                   .online_bytes = bytes,
                   .unmarked = plan.unmarked,
                   .between = true},
                  kGranularity, kGranularity);
}

// What the arenas of a device answer; of one that cannot be, nothing.
template <typename Ask>
auto asked(int device, Ask ask) -> decltype(ask(std::declval<Arenas&>())) {
  if (Arenas* arenas = arenas_of(device)) return ask(*arenas);
  return {};
}

}  // namespace
}  // namespace memplan::cuda

using namespace memplan::cuda;

// ---- finding the slots; see allocator.h

MEMPLAN_API const char* memplan_cuda_check(const char* path) { return told(check(path)); }
MEMPLAN_API const char* memplan_cuda_prepare(const char* path) {
  return told(prepare(path));
}
MEMPLAN_API std::uint64_t memplan_cuda_slots() {
  const State& s = state();
  return s.slots == nullptr ? 0 : s.torch.slots;
}
MEMPLAN_API void memplan_cuda_watch(std::uint64_t slot) {
  state().slots.load()->watch(slot);
}
MEMPLAN_API std::uint64_t memplan_cuda_stop_watching() {
  return state().slots.load()->stop_watching();
}
MEMPLAN_API bool memplan_cuda_take_slot(int role, std::uint64_t slot) {
  return role >= 0 && role < static_cast<int>(Role::kRoles) &&
         take_slot(static_cast<Role>(role), slot);
}
MEMPLAN_API bool memplan_cuda_installed() { return state().installed; }
MEMPLAN_API const char* memplan_cuda_install() { return told(install()); }

// ---- a recording; see observer.h

MEMPLAN_API const char* memplan_cuda_attach(const char* path) {
  try {
    return told(attach(path));
  } catch (const std::exception& failure) {  // torch's, of a device that has failed
    return told(failure.what());
  }
}
MEMPLAN_API void memplan_cuda_observe(const memplan::Observation* recording) {
  observe(recording);
}
MEMPLAN_API void memplan_cuda_tell(int action, int device, std::uint64_t stream,
                                   std::uint64_t address, std::uint64_t bytes) {
  tell({address, bytes, stream, device, -1, static_cast<memplan::Action>(action)});
}
MEMPLAN_API std::uint64_t memplan_cuda_missed() { return missed(); }

// ---- plans. For `rank` see Arenas::load.

// Requests of `sizes` bytes at `offsets` (-1: not planned), in steps that begin at
// `starts`, `elastic` or not; steps [loop_begin, loop_end) repeat, and those after them
// are of other kinds. `brief`: see Table::by_lifespan. `later`: from the next step on, in
// place of the plan that is there.
MEMPLAN_API const char* memplan_cuda_load_plan(int device, unsigned rank, bool later,
                                               const PlanArrays* plan) {
  try {
    Arenas* arenas = arenas_of(device);
    if (arenas == nullptr) return told("no such GPU: " + std::to_string(device));
    memplan::Table table = table_from(*plan);
    if (!later) {
      const Arenas::Blocks returned = arenas->load(rank, std::move(table), plan->reserved);
    } else if (!arenas->adopt(rank, std::move(table))) {
      return told("that stream has no plan to be exchanged");
    }
    return nullptr;
  } catch (const std::exception& failure) {
    return told(failure.what());
  }
}

MEMPLAN_API void memplan_cuda_serve(bool on) {
  state().serving.store(on, std::memory_order_release);
}

// No plan any more: arenas go back to torch as they get empty.
MEMPLAN_API void memplan_cuda_retire() {
  for (Arenas* arenas : all_arenas()) {
    const Arenas::Blocks returned = arenas->retire();
  }
}

MEMPLAN_API void memplan_cuda_next_step(unsigned char mark) { next_step(mark); }
MEMPLAN_API void memplan_cuda_interrupt() { state().interruptions.add(); }
MEMPLAN_API bool memplan_cuda_resume() { return state().interruptions.remove(); }
MEMPLAN_API void memplan_cuda_heed(const std::atomic<int>* elsewhere) {
  state().elsewhere.store(elsewhere);
}

MEMPLAN_API void memplan_cuda_stand_aside(int device, unsigned rank, bool aside) {
  const Arenas::Blocks returned =
      asked(device, [&](Arenas& arenas) { return arenas.stand_aside(rank, aside); });
}
MEMPLAN_API bool memplan_cuda_aside(int device, unsigned rank) {
  return asked(device, [&](Arenas& arenas) { return arenas.aside(rank); });
}
MEMPLAN_API std::uint64_t memplan_cuda_planned_bytes(int device, unsigned rank) {
  return asked(device, [&](Arenas& arenas) { return arenas.planned_bytes(rank); });
}

MEMPLAN_API std::uint64_t memplan_cuda_reserved_bytes(int device, unsigned rank) {
  return asked(device, [&](Arenas& arenas) { return arenas.reserved_bytes(rank); });
}

// Up to `capacity` of the repeated steps that ended since the last call; of each the
// step's number, each counter, whether it asked for more than planned, and how many of
// the fallback came as planned while no arena took them in. Returns how many steps; the
// rest is lost.
MEMPLAN_API std::uint64_t memplan_cuda_take_steps(int device, unsigned rank,
                                                  std::uint64_t* values,
                                                  std::uint64_t capacity) {
  const std::vector<memplan::StepEnd> ended =
      asked(device, [&](Arenas& arenas) { return arenas.take_steps(rank); });
  const std::size_t count = std::min<std::size_t>(ended.size(), capacity);
  for (std::size_t i = 0; i < count; ++i) {
    *values++ = ended[i].step;
    for (const auto& [name, counter] : memplan::kCounters) {
      *values++ = ended[i].counts.*counter;
    }
    *values++ = ended[i].outgrown ? 1 : 0;
    *values++ = ended[i].followed;
  }
  return count;
}

// Up to `capacity` of what Steps::largest has; returns how many there are.
MEMPLAN_API std::uint64_t memplan_cuda_largest(int device, unsigned rank,
                                               std::uint64_t* values,
                                               std::uint64_t capacity) {
  const std::vector<std::uint64_t> found =
      asked(device, [&](Arenas& arenas) { return arenas.largest(rank); });
  std::copy_n(found.begin(), std::min<std::size_t>(found.size(), capacity), values);
  return found.size();
}

// ---- events

MEMPLAN_API void memplan_cuda_open_log(int device, unsigned rank) {
  State& s = state();
  s.log_device = device;
  s.log_rank = rank;
  s.log.open();
}

// Closes the log. The events stay valid until the next call; returns how many.
MEMPLAN_API std::uint64_t memplan_cuda_take_log(const memplan::Event** events) {
  static std::mutex mutex;
  static std::vector<memplan::Event>* const kept = new std::vector<memplan::Event>;
  std::lock_guard lock(mutex);
  *kept = state().log.take();
  *events = kept->data();
  return kept->size();
}

// ---- what came of it

// The names of what `stats` gives, separated by commas.
MEMPLAN_API const char* memplan_cuda_stat_names() { return told(stat_names()); }

// A value for each of the names, for `device`. False for one that nothing was asked of.
MEMPLAN_API bool memplan_cuda_stats(int device, std::uint64_t* values) {
  for (Arenas* arenas : all_arenas()) {
    if (arenas->device() != device) continue;
    const Stats now = arenas->stats();
    for (std::size_t i = 0; i < kStatCount; ++i) *values++ = now[i];
    memplan::PhaseCounts counts = arenas->counts();
    counts.warmup += counts.hot;
    for (const memplan::Counts& each : {counts.warmup, counts.hot}) {
      for (const auto& [name, counter] : memplan::kCounters) *values++ = each.*counter;
    }
    return true;
  }
  return false;
}

// Blocks alive in arenas, or waited for.
MEMPLAN_API std::uint64_t memplan_cuda_blocks() {
  std::uint64_t count = 0;
  for (Arenas* arenas : all_arenas()) count += arenas->blocks();
  return count;
}

// Whether `address` lies in an arena.
MEMPLAN_API bool memplan_cuda_holds(const void* address) {
  const std::vector<Arenas*> all = all_arenas();
  return std::any_of(all.begin(), all.end(),
                     [&](Arenas* arenas) { return arenas->holds(address); });
}
