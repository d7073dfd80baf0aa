#include "cuda/observer.h"

#include <dlfcn.h>

#include <array>
#include <cstring>
#include <functional>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "cuda/allocator.h"

namespace memplan::cuda {
namespace {

// torch's TraceEntry, as far as it is looked at; `attach` tries whether it is so.
struct TraceEntry {
  std::int32_t action;
  std::int8_t device;
  std::uint64_t address;
  void* context[2];
  void* stream;
  std::uint64_t size;
};
using Tracker = std::function<void(const TraceEntry&)>;
using Attach = void (*)(void* self, Tracker tracker);

// Of a TraceEntry; what came to be added since has higher codes.
enum TraceAction : std::int32_t {
  kTracedAlloc,
  kTracedFreeRequested,
  kTracedFreeCompleted,
  kTracedSegmentAlloc,
  kTracedSegmentFree,
  kTracedSegmentMap,
  kTracedSegmentUnmap,
  kTracedSnapshot,
  kTracedOom,
};

// An allocator class that torch exports by name, with its table: of the same functions in
// the same order as the native one's, which has no names.
constexpr const char* kNamedTable =
    "_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE";
constexpr const char* kNamed =
    "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator";

struct Observer {
  std::atomic<const memplan::Observation*> recording = nullptr;
  std::atomic<bool> attached = false;
  std::mutex mutex;
  // Addresses of the blocks that the recording was told of: frees of others are none of
  // its events.
  std::unordered_set<std::uint64_t> told;
  std::uint64_t missed = 0;
};

Observer& observer() {
  static Observer* const the_observer = new Observer;
  return *the_observer;
}

thread_local std::int32_t asked = -1;               // stack of the request under way
thread_local std::vector<TraceEntry>* tried = nullptr;  // of a trial's own requests

// As the recording has it; false for what is no event of its.
bool translated(const TraceEntry& entry, Observer& o, memplan::Observed& seen) {
  seen = {entry.address, entry.size, 0, entry.device, -1, kAlloc};
  const auto stream = reinterpret_cast<std::uint64_t>(entry.stream);
  std::lock_guard lock(o.mutex);
  switch (entry.action) {
    case kTracedAlloc:
      if (interrupted()) return false;
      o.told.insert(entry.address);
      seen.stack = asked;
      break;
    case kTracedFreeRequested:
      seen.action = kFreeRequested;
      if (!o.told.contains(entry.address)) return false;
      break;
    case kTracedFreeCompleted:
      seen.action = kFree;
      if (o.told.erase(entry.address) == 0) return false;
      break;
    case kTracedSegmentAlloc:
    case kTracedSegmentMap:
      seen.action = kSegmentAlloc;
      return true;
    case kTracedSegmentFree:
    case kTracedSegmentUnmap:
      seen.action = kSegmentFree;
      return true;
    case kTracedOom:
      seen.action = kOom;
      seen.stack = asked;
      return !interrupted();
    default:
      return false;
  }
  seen.size = round_up(entry.size, kGranularity);
  seen.stream = stream;
  return true;
}

void on_traced(const TraceEntry& entry) {
  Observer& o = observer();
  try {
    if (tried != nullptr) return tried->push_back(entry);
    const memplan::Observation* recording = o.recording.load(std::memory_order_acquire);
    memplan::Observed seen;
    if (recording != nullptr && translated(entry, o, seen)) recording->observe(&seen);
  } catch (...) {  // it must not end what the program asked for
    std::lock_guard lock(o.mutex);
    ++o.missed;
  }
}

bool is_named(void* function, const char* name) {
  Dl_info info;
  if (dladdr(function, &info) == 0 || info.dli_sname == nullptr) return false;
  const std::size_t length = std::strlen(kNamed);
  return std::strncmp(info.dli_sname, kNamed, length) == 0 &&
         std::strncmp(info.dli_sname + length, name, std::strlen(name)) == 0;
}

// The slot of the function whose mangled name within the class begins so; 0 unless there
// is just one.
std::size_t slot_named(void* const* table, std::size_t slots, const char* name) {
  std::size_t found = 0;
  for (std::size_t slot = kAllocateSlot; slot < slots; ++slot) {
    if (!is_code(table[slot])) return 0;
    if (!is_named(table[slot], name)) continue;
    if (found != 0) return 0;
    found = slot;
  }
  return found;
}

// Which slot takes a tracker; "" or why that is not known.
std::string find_slot(const char* path, std::size_t& slot) {
  const State& s = state();
  void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return std::string(path) + " is not loaded";
  auto* table = static_cast<void* const*>(dlsym(library, kNamedTable));
  if (table == nullptr) return "torch has no allocator whose functions have names";
  table += 2;
  // That the order is the same is seen where other functions were found by watching them.
  constexpr std::array<const char*, static_cast<int>(Role::kRoles)> kKnown = {
      "12recordStreamERKN3c107DataPtr", "19beginAllocateToPool",
      "17endAllocateToPool", "10emptyCache"};
  for (std::size_t role = 0; role < kKnown.size(); ++role) {
    bool same = false;
    const std::size_t named = slot_named(table, s.torch.slots, kKnown[role]);
    for (std::size_t i = 0; i < s.taken[role]; ++i) {
      same = same || (named != 0 && s.slots.load()->native(named) == s.native[role][i]);
    }
    if (!same) return "its functions are in another order than those with names";
  }
  slot = slot_named(table, s.torch.slots, "27attachAllocatorTraceTracker");
  return slot == 0 ? "it has no function that tells of its events" : std::string();
}

// Makes a block and frees it, and looks at what torch tells of that.
std::string try_tracker() {
  constexpr std::uint64_t kBytes = 1001;
  State& s = state();
  std::int8_t device = 0;
  if (s.torch.get_device(&device) != kSuccess) return "it has no current device";
  const StreamValue stream = s.torch.current_stream(device);
  std::vector<TraceEntry> entries;
  std::uint64_t address = 0;
  struct Trial {
    explicit Trial(std::vector<TraceEntry>& into) { tried = &into; }
    ~Trial() { tried = nullptr; }
  } trial(entries);
  {
    const c10::DataPtr block = s.allocate(static_cast<void*>(s.torch.object), kBytes);
    address = reinterpret_cast<std::uint64_t>(block.data);
  }
  std::vector<std::int32_t> actions;
  for (const TraceEntry& entry : entries) {
    if (entry.action > kTracedFreeCompleted) continue;
    const std::uint64_t size = round_up(entry.size, kGranularity);
    const bool right = entry.address == address && entry.device == device &&
                       entry.stream == s.torch.stream_handle(&stream) &&
                       size == round_up(kBytes, kGranularity);
    if (!right) return "what it tells of its events is not as expected";
    actions.push_back(entry.action);
  }
  const std::vector<std::int32_t> expected = {kTracedAlloc, kTracedFreeRequested,
                                              kTracedFreeCompleted};
  if (actions == expected) return {};
  return "it tells of " + std::to_string(actions.size()) + " events where there are 3";
}

}  // namespace

std::string attach(const char* path) {
  State& s = state();
  Observer& o = observer();
  if (!s.installed) return "its allocator was not looked for yet";
  if (!o.attached) {
    std::size_t slot = 0;
    if (std::string fault = find_slot(path, slot); !fault.empty()) return fault;
    const auto function = reinterpret_cast<Attach>(s.slots.load()->native(slot));
    if (o.attached.exchange(true)) return {};
    function(static_cast<void*>(s.torch.object), &on_traced);
  }
  return try_tracker();
}

void observe(const memplan::Observation* recording) {
  Observer& o = observer();
  std::lock_guard lock(o.mutex);
  o.told.clear();
  if (recording != nullptr) o.missed = 0;
  o.recording.store(recording, std::memory_order_release);
}

void tell(memplan::Observed seen) {
  Observer& o = observer();
  const memplan::Observation* recording = o.recording.load(std::memory_order_acquire);
  if (recording == nullptr) return;
  if (seen.action == kAlloc) {
    std::lock_guard lock(o.mutex);
    if (!o.told.insert(seen.address).second) return;
    seen.size = round_up(seen.size, kGranularity);
  }
  recording->observe(&seen);
}

std::uint64_t missed() {
  Observer& o = observer();
  std::lock_guard lock(o.mutex);
  return o.missed;
}

bool observing() {
  return observer().recording.load(std::memory_order_relaxed) != nullptr;
}

Asking::Asking() {
  const memplan::Observation* recording = observer().recording.load();
  if (recording != nullptr && !interrupted()) asked = recording->stack();
}

Asking::~Asking() { asked = -1; }

void lock_observer() { observer().mutex.lock(); }

void unlock_observer() { observer().mutex.unlock(); }

}  // namespace memplan::cuda
