// What torch calls: the functions that are put into its allocator's slots.
#include <cxxabi.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <typeinfo>
#include <utility>
#include <vector>

#include "alloc/recorder.h"
#include "cuda/observer.h"
#include "cuda/allocator.h"

namespace memplan::cuda {
namespace {

using RecordStream = void (*)(void* self, const c10::DataPtr& block, StreamValue stream);
// The pool's two numbers come by value; what follows them is passed on as it is.
using Pool = void (*)(void* self, std::int8_t device, std::uint64_t first,
                      std::uint64_t second, void* filter);

using EmptyCache = void (*)(void* self, std::uint64_t first, std::uint64_t second);

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

// A block of torch's own whose end is to be seen: it gets our deleter, unless it has one
// that is not torch's own. Returns whether it has ours.
bool follow(State& s, c10::DataPtr& block) {
  c10::Deleter& deleter = block.context.get_deleter();
  if (deleter == &on_delete) return true;
  c10::Deleter known = nullptr;
  s.native_delete.compare_exchange_strong(known, deleter);
  if (known != nullptr && known != deleter) return false;
  deleter = &on_delete;
  return true;
}

// ---- in the slots

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

thread_local bool emptying = false;  // by us

// torch's cache, of all devices; unless one of them may be capturing. A failure is no
// concern of the program's: what it asks for will fail, too, if it must.
bool empty_cache(State& s, void* self) {
  const std::vector<Arenas*> all = all_arenas();
  const bool open = std::any_of(all.begin(), all.end(),
                                [](Arenas* arenas) { return arenas->pool_open(); });
  if (open) return false;
  const auto native =
      reinterpret_cast<EmptyCache>(s.native[static_cast<int>(Role::kEmptyCache)][0]);
  emptying = true;
  try {
    native(self, 0, 0);
  } catch (...) {
    emptying = false;
    return false;
  }
  emptying = false;
  for (Arenas* arenas : all) arenas->emptied();
  return true;
}

// Memory for the arena that is wanted, and the request's place there.
void* in_new_arena(State& s, void* self, Arenas& arenas, const Arenas::Answer& answer,
                   std::size_t bytes) {
  c10::DataPtr block;
  try {
    block = s.allocate(self, arenas.arena_bytes(answer.wanted));
  } catch (...) {
    if (!out_of_memory()) {
      arenas.made(answer, {}, bytes);
      throw;
    }
  }
  return arenas.made(answer, std::move(block), bytes);
}

c10::DataPtr served(void* self, std::size_t bytes) {
  State& s = state();
  std::int8_t device = 0;
  if (!s.serving.load(std::memory_order_acquire) || bytes == 0 ||
      s.torch.get_device(&device) != kSuccess) {
    return s.allocate(self, bytes);
  }
  Arenas* arenas = existing(device);
  if (arenas == nullptr) return s.allocate(self, bytes);
  if (interrupted()) {
    arenas->note(kInterrupted);
    return s.allocate(self, bytes);
  }
  const std::int64_t stream = s.torch.current_stream(device).id;
  if (arenas->pool_open()) {
    arenas->pass_by(bytes, stream);
    return s.allocate(self, bytes);
  }
  Arenas::Answer answer;
  try {
    answer = arenas->allocate(bytes, stream);
  } catch (const std::bad_alloc&) {  // no memory for our own books
    return s.allocate(self, bytes);
  }
  answer.returned.clear();
  const bool emptied = answer.empty && empty_cache(s, self);
  c10::DataPtr block;
  try {
    void* address = answer.address;
    if (answer.wanted != nullptr && answer.empty && !emptied) {
      arenas->made(answer, {}, bytes);
    } else if (answer.wanted != nullptr) {
      address = in_new_arena(s, self, *arenas, answer, bytes);
    }
    block = address != nullptr ? ours(address, device)
                               : from_torch(s, self, bytes, arenas, stream, device);
    if (address == nullptr) {
      const bool followed = follow(s, block);
      arenas->served(answer, followed ? block.data : nullptr, bytes);
    }
  } catch (...) {
    arenas->failed(answer, out_of_memory());
    throw;
  }
  if (s.log.is_open() && logged(s, device, arenas->rank_of(stream))) {
    note_request(s, block.data, bytes);
  }
  return block;
}

c10::DataPtr on_allocate(void* self, std::size_t bytes) {
  if (!observing() || bytes == 0) return served(self, bytes);
  const Asking asking;
  return served(self, bytes);
}

void on_delete(void* address) {
  State& s = state();
  // Before it is free, or another thread's reuse of the address would come first.
  if (s.log.is_open()) {
    Arenas* arenas = existing(s.log_device);
    if (arenas != nullptr && arenas->lies_on(address, s.log_rank)) {
      s.log.append(event_of(kFree, address, 0));
    }
  }
  Arenas::Blocks returned;
  for (const auto& entry : s.devices) {
    Arenas* arenas = entry.load(std::memory_order_acquire);
    if (arenas == nullptr) continue;
    const Arenas::Released released = arenas->release(address, returned);
    if (released == Arenas::Released::kOurs) return;
    if (released == Arenas::Released::kTorchs) break;
  }
  s.native_delete.load()(address);
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
  try {
    native(self, as_torchs, stream);
  } catch (...) {
    static_cast<void>(as_torchs.context.release());  // the block is the tensor's
    throw;
  }
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

// Without a pool's two numbers it is the whole cache; arenas without a block go, too.
template <std::size_t kWhich>
void on_empty_cache(void* self, std::uint64_t first, std::uint64_t second) {
  const auto native = reinterpret_cast<EmptyCache>(
      state().native[static_cast<int>(Role::kEmptyCache)][kWhich]);
  if (first == 0 && second == 0 && !emptying) {
    for (Arenas* arenas : all_arenas()) {
      const Arenas::Blocks returned = arenas->empty_cache();  // goes back to torch here
    }
  }
  native(self, first, second);
}

template <std::size_t... kWhich>
constexpr auto hooks(std::index_sequence<kWhich...>) {
  using Row = std::array<void*, kMostOfARole>;
  return std::array<Row, static_cast<int>(Role::kRoles)>{
      Row{reinterpret_cast<void*>(&on_record_stream<kWhich>)...},
      Row{reinterpret_cast<void*>(&on_begin_pool<kWhich>)...},
      Row{reinterpret_cast<void*>(&on_end_pool<kWhich>)...},
      Row{reinterpret_cast<void*>(&on_empty_cache<kWhich>)...},
  };
}

}  // namespace

void* allocate_hook() { return reinterpret_cast<void*>(&on_allocate); }

void* hook_of(Role role, std::size_t which) {
  static constexpr std::make_index_sequence<kMostOfARole> kAll;
  return hooks(kAll)[static_cast<std::size_t>(role)][which];
}

}  // namespace memplan::cuda
