// What torch calls: the functions that are put into its allocator's slots.
#include <cxxabi.h>

#include <cstring>
#include <typeinfo>
#include <utility>

#include "alloc/recorder.h"
#include "cuda/observer.h"
#include "cuda/allocator.h"

namespace memplan::cuda {
namespace {

using RecordStream = void (*)(void* self, const c10::DataPtr& block, StreamValue stream);
// The pool's two numbers come by value; what follows them is passed on as it is.
using Pool = void (*)(void* self, std::int8_t device, std::uint64_t first,
                      std::uint64_t second, void* filter);

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

// Torch's own allocator serves, and what lies idle is given back before memory runs out.
c10::DataPtr from_torch(State& s, void* self, std::size_t bytes, Arenas* arenas,
                        std::int64_t stream, std::int8_t device) {
  try {
    return s.allocate(self, bytes);
  } catch (...) {
    if (arenas == nullptr || !out_of_memory()) throw;
    Arenas::Blocks idle = arenas->give_back(true);
    if (!idle.empty()) {
      idle.clear();
      return from_torch(s, self, bytes, arenas, stream, device);
    }
    if (void* address = arenas->last_resort(bytes, stream)) return ours(address, device);
    arenas->note(kOutOfMemory);
    throw;
  }
}

// Whether `bytes` at once may be taken; what torch keeps free is given back first.
bool permitted(State& s, Arenas& arenas, std::int64_t stream, std::uint64_t bytes,
               bool hot) {
  const Permission permission = s.permission.load();
  return permission == nullptr ||
         permission(arenas.device(), arenas.rank_of(stream), bytes, hot);
}

// Memory for the arena that is wanted, and the request's place there.
void* in_new_arena(State& s, void* self, Arenas& arenas, const Arenas::Answer& answer,
                   std::size_t bytes, std::int64_t stream) {
  const std::uint64_t size = arenas.arena_bytes(answer.wanted);
  if (!permitted(s, arenas, stream, size, answer.hot)) {
    arenas.defer(answer.wanted);
    return nullptr;
  }
  c10::DataPtr block;
  try {
    block = s.allocate(self, size);
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
  const Arenas::Answer answer = arenas->allocate(bytes, stream);
  void* address = answer.address;
  if (answer.wanted != nullptr) {
    address = in_new_arena(s, self, *arenas, answer, bytes, stream);
  }
  // It is torch's, permitted or not: steps that get larger and larger would each leave
  // one more block, too small for the next.
  if (answer.beside) static_cast<void>(permitted(s, *arenas, stream, bytes, false));
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

c10::DataPtr on_allocate(void* self, std::size_t bytes) {
  if (!observing() || bytes == 0) return served(self, bytes);
  const Asking asking;
  return served(self, bytes);
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

}  // namespace

void* allocate_hook() { return reinterpret_cast<void*>(&on_allocate); }

void* hook_of(Role role, std::size_t which) {
  static constexpr std::make_index_sequence<kMostOfARole> kAll;
  return hooks(kAll)[static_cast<std::size_t>(role)][which];
}

}  // namespace memplan::cuda
