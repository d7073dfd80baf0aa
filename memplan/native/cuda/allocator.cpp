#include "cuda/allocator.h"

#include <cxxabi.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <typeinfo>
#include <utility>

#include "alloc/eventlog.h"
#include "alloc/recorder.h"
#include "cuda/slots.h"

namespace memplan::cuda {
namespace {

using Allocate = c10::DataPtr (*)(void* self, std::size_t bytes);
using RecordStream = void (*)(void* self, const c10::DataPtr& block, StreamValue stream);
// The pool's two numbers come by value; what follows them is passed on as it is.
using Pool = void (*)(void* self, std::int8_t device, std::uint64_t first,
                      std::uint64_t second, void* filter);

constexpr std::int8_t kCuda = 1;  // c10::DeviceType

struct State {
  std::mutex mutex;  // of preparing, and of making Arenas
  Torch torch;
  std::atomic<Slots*> slots = nullptr;
  Allocate allocate = nullptr;  // torch's own
  // torch's own functions in the slots that we took, by role.
  std::array<std::array<void*, kMostOfARole>, static_cast<int>(Role::kRoles)> native = {};
  std::array<std::size_t, static_cast<int>(Role::kRoles)> taken = {};
  std::atomic<bool> installed = false;

  std::array<std::atomic<Arenas*>, kMaxDevices> devices = {};
  std::atomic<bool> serving = false;
  std::atomic<int> interruptions = 0;
  std::atomic<const std::atomic<int>*> elsewhere = nullptr;  // the CPU's, too
  // torch's deleter of its own blocks, once it is known.
  std::atomic<c10::Deleter> native_delete = nullptr;

  EventLog log;
  std::atomic<int> log_device = -1;
  std::atomic<unsigned> log_rank = 0;
};

State& state() {
  static State* const the_state = new State;
  return *the_state;
}

Arenas* existing(int device) {
  if (device < 0 || device >= kMaxDevices) return nullptr;
  return state().devices[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
}

void on_delete(void* address);

c10::DataPtr ours(void* address, std::int8_t device) {
  c10::DataPtr block;
  block.data = address;
  block.context = {address, &on_delete};
  block.device_type = kCuda;
  block.device_index = device;
  return block;
}

bool out_of_memory() {
  const std::type_info* thrown = abi::__cxa_current_exception_type();
  return thrown != nullptr && std::strstr(thrown->name(), "OutOfMemoryError") != nullptr;
}

// ---- what is written down

bool logged(const State& s, int device, unsigned rank) {
  return s.log_device == device && s.log_rank == rank;
}

void note_request(State& s, const void* address, std::size_t bytes) {
  s.log.append(event_of(kAlloc, address, round_up(bytes, kGranularity)));
}

// A block of torch's own whose end is to be seen: it gets our deleter, unless somebody
// else's books hang on the one that it has.
void follow(State& s, c10::DataPtr& block) {
  c10::Deleter& deleter = block.context.get_deleter();
  c10::Deleter known = nullptr;
  s.native_delete.compare_exchange_strong(known, deleter);
  if (known != nullptr && known != deleter) return;
  deleter = &on_delete;
}

// ---- in the slots

bool interrupted(const State& s) {
  const std::atomic<int>* elsewhere = s.elsewhere.load(std::memory_order_relaxed);
  return s.interruptions.load(std::memory_order_relaxed) > 0 ||
         (elsewhere != nullptr && elsewhere->load(std::memory_order_relaxed) > 0);
}

// Torch's own allocator serves, and what lies idle is given back before memory runs out.
c10::DataPtr from_torch(State& s, void* self, std::size_t bytes, Arenas* arenas,
                        std::int64_t stream, std::int8_t device) {
  try {
    return s.allocate(self, bytes);
  } catch (...) {
    if (arenas == nullptr || !out_of_memory()) throw;
    Arenas::Blocks idle = arenas->give_back();
    if (!idle.empty()) {
      idle.clear();
      return from_torch(s, self, bytes, arenas, stream, device);
    }
    if (void* address = arenas->last_resort(bytes, stream)) return ours(address, device);
    arenas->note(kOutOfMemory);
    throw;
  }
}

// Memory for the arena that was wanted, and then the request again.
void* in_new_arena(State& s, void* self, Arenas& arenas, Arenas::Arena* wanted,
                   std::size_t bytes, std::int64_t stream) {
  c10::DataPtr block;
  try {
    block = s.allocate(self, arenas.arena_bytes(wanted));
  } catch (...) {
    if (!out_of_memory()) {
      arenas.made(wanted, {});
      throw;
    }
  }
  arenas.made(wanted, std::move(block));
  return arenas.allocate(bytes, stream).address;
}

c10::DataPtr on_allocate(void* self, std::size_t bytes) {
  State& s = state();
  std::int8_t device = 0;
  if (!s.serving.load(std::memory_order_acquire) || bytes == 0 ||
      s.torch.get_device(&device) != kSuccess) {
    return s.allocate(self, bytes);
  }
  Arenas* arenas = existing(device);
  if (arenas == nullptr) return s.allocate(self, bytes);
  if (arenas->pool_open() || interrupted(s)) {
    arenas->note(arenas->pool_open() ? kInPools : kInterrupted);
    return s.allocate(self, bytes);
  }
  const std::int64_t stream = s.torch.current_stream(device).id;
  auto [address, wanted] = arenas->allocate(bytes, stream);
  if (wanted != nullptr) {
    address = in_new_arena(s, self, *arenas, wanted, bytes, stream);
  }
  const bool log = s.log.is_open() && logged(s, device, arenas->rank_of(stream));
  if (address != nullptr) {
    if (log) note_request(s, address, bytes);
    return ours(address, device);
  }
  c10::DataPtr block = from_torch(s, self, bytes, arenas, stream, device);
  if (log) {
    note_request(s, block.data, bytes);
    follow(s, block);
  }
  return block;
}

void on_delete(void* address) {
  State& s = state();
  // Before it is free, or another thread's reuse of the address would come first.
  if (s.log.is_open()) s.log.append(event_of(kFree, address, 0));
  Arenas::Blocks returned;
  for (const auto& entry : s.devices) {
    Arenas* arenas = entry.load(std::memory_order_acquire);
    if (arenas != nullptr && arenas->release(address, returned)) return;
  }
  s.native_delete.load()(address);  // of a block that was followed
}

template <std::size_t kWhich>
void on_record_stream(void* self, const c10::DataPtr& block, StreamValue stream) {
  State& s = state();
  const auto native = reinterpret_cast<RecordStream>(
      s.native[static_cast<int>(Role::kRecordStream)][kWhich]);
  if (block.data == nullptr || block.context.get_deleter() != &on_delete) {
    return native(self, block, stream);
  }
  void* base = block.context.get();
  for (const auto& entry : s.devices) {
    Arenas* arenas = entry.load(std::memory_order_acquire);
    if (arenas == nullptr || !arenas->holds(base)) continue;
    arenas->record_stream(base, stream, s.torch.stream_handle(&stream));
    return;
  }
  // One that was followed: torch looks at the deleter for whether it is its own.
  c10::DataPtr as_torchs;
  as_torchs.data = block.data;
  as_torchs.context = {base, s.native_delete.load()};
  as_torchs.device_type = block.device_type;
  as_torchs.device_index = block.device_index;
  native(self, as_torchs, stream);
  static_cast<void>(as_torchs.context.release());
}

template <std::size_t kWhich>
void on_begin_pool(void* self, std::int8_t device, std::uint64_t first,
                   std::uint64_t second, void* filter) {
  const auto native = reinterpret_cast<Pool>(
      state().native[static_cast<int>(Role::kBeginPool)][kWhich]);
  Arenas* arenas = arenas_of(device);
  if (arenas != nullptr) arenas->pool(true);
  try {
    native(self, device, first, second, filter);
  } catch (...) {
    if (arenas != nullptr) arenas->pool(false);
    throw;
  }
}

template <std::size_t kWhich>
void on_end_pool(void* self, std::int8_t device, std::uint64_t first,
                 std::uint64_t second, void* nothing) {
  const auto native = reinterpret_cast<Pool>(
      state().native[static_cast<int>(Role::kEndPool)][kWhich]);
  native(self, device, first, second, nothing);
  if (Arenas* arenas = arenas_of(device)) arenas->pool(false);
}

template <std::size_t... kWhich>
constexpr auto hooks(std::index_sequence<kWhich...>) {
  using Row = std::array<void*, kMostOfARole>;
  return std::array<Row, static_cast<int>(Role::kRoles)>{
      Row{reinterpret_cast<void*>(&on_record_stream<kWhich>)...},
      Row{reinterpret_cast<void*>(&on_begin_pool<kWhich>)...},
      Row{reinterpret_cast<void*>(&on_end_pool<kWhich>)...},
  };
}

// ---- a forked child

// It shares the parent's tensors' addresses, and no device: whatever it asks torch for,
// torch answers, and what it frees it frees in its own copy only.
void before_fork() {
  State& s = state();
  s.mutex.lock();
  s.log.lock();
  for (Arenas* arenas : all_arenas()) arenas->lock();
}

void in_parent() {
  State& s = state();
  for (Arenas* arenas : all_arenas()) arenas->unlock();
  s.log.unlock();
  s.mutex.unlock();
}

void in_child() {
  State& s = state();
  s.serving.store(false);
  in_parent();
  s.log.take();
}

}  // namespace

std::string check(const char* path) {
  Torch torch;
  State& s = state();
  std::lock_guard lock(s.mutex);
  return s.slots == nullptr ? find_torch(path, torch) : std::string();
}

std::string prepare(const char* path) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.slots != nullptr) return {};
  if (std::string fault = find_torch(path, s.torch); !fault.empty()) return fault;
  s.allocate = reinterpret_cast<Allocate>(s.torch.table[kAllocateSlot]);
  s.slots = new Slots(s.torch);
  pthread_atfork(&before_fork, &in_parent, &in_child);
  return {};
}

std::size_t slot_count() {
  const Slots* slots = state().slots;
  return slots == nullptr ? 0 : slots->count();
}

void watch(std::size_t slot) { state().slots.load()->watch(slot); }

std::size_t stop_watching() { return state().slots.load()->stop_watching(); }

bool take_slot(Role role, std::size_t slot) {
  static constexpr std::make_index_sequence<kMostOfARole> kAll;
  State& s = state();
  const auto of = static_cast<std::size_t>(role);
  const std::size_t which = s.taken[of];
  if (s.installed || which == kMostOfARole || slot >= slot_count()) return false;
  s.native[of][which] = s.slots.load()->native(slot);
  ++s.taken[of];
  s.slots.load()->exchange(slot, hooks(kAll)[of][which]);
  return true;
}

bool installed() { return state().installed; }

std::string install() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.slots == nullptr) return "its allocator was not looked for yet";
  static constexpr std::array<const char*, static_cast<int>(Role::kRoles)> kNames = {
      "recordStream", "beginAllocateToPool", "endAllocateToPool"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (s.taken[i] == 0) return std::string("its ") + kNames[i] + " was not found";
  }
  if (!s.installed) {
    s.slots.load()->exchange(kAllocateSlot, reinterpret_cast<void*>(&on_allocate));
  }
  s.installed = true;
  return {};
}

Arenas* arenas_of(int device) {
  if (Arenas* found = existing(device)) return found;
  if (device < 0 || device >= kMaxDevices) return nullptr;
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (Arenas* found = existing(device)) return found;
  auto* made = new Arenas(s.torch.runtime, device);
  s.devices[static_cast<std::size_t>(device)].store(made, std::memory_order_release);
  return made;
}

std::vector<Arenas*> all_arenas() {
  std::vector<Arenas*> all;
  for (int device = 0; device < kMaxDevices; ++device) {
    if (Arenas* found = existing(device)) all.push_back(found);
  }
  return all;
}

void serve(bool on) { state().serving.store(on, std::memory_order_release); }

void heed(const std::atomic<int>* elsewhere) { state().elsewhere.store(elsewhere); }

void interrupt() { state().interruptions.fetch_add(1); }

bool resume() {
  std::atomic<int>& interruptions = state().interruptions;
  int now = interruptions.load();
  while (now > 0 && !interruptions.compare_exchange_weak(now, now - 1)) {
  }
  return now > 0;
}

void next_step(std::uint8_t mark) {
  State& s = state();
  if (s.log.is_open()) s.log.append(event_of(kStep, nullptr, 0, mark));
  for (Arenas* arenas : all_arenas()) {
    const Arenas::Blocks returned = arenas->next_step();  // goes back to torch here
  }
}

void open_log(int device, unsigned rank) {
  State& s = state();
  s.log_device = device;
  s.log_rank = rank;
  s.log.open();
}

std::vector<memplan::Event> take_log() { return state().log.take(); }

}  // namespace memplan::cuda
