#include "cuda/torch.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

namespace memplan::cuda {
namespace {

constexpr const char* kNative = "N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";
// Every release has had between these; a table beyond them was not read right.
constexpr std::size_t kFewestSlots = 20;
constexpr std::size_t kMostSlots = 256;

struct Wanted {
  std::uintptr_t address;
  ElfW(Word) flags;
  bool found;
};

int look(dl_phdr_info* info, std::size_t, void* data) {
  auto& wanted = *static_cast<Wanted*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type != PT_LOAD || (part.p_flags & wanted.flags) != wanted.flags) continue;
    if (wanted.address < begin || wanted.address - begin >= part.p_memsz) continue;
    wanted.found = true;
    return 1;
  }
  return 0;
}

// Whether a loaded library has `address` in a segment of these flags.
bool lies_in(const void* address, ElfW(Word) flags) {
  Wanted wanted = {reinterpret_cast<std::uintptr_t>(address), flags, false};
  dl_iterate_phdr(&look, &wanted);
  return wanted.found;
}

template <typename Function>
bool look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// The type's name, as the ABI has it before every virtual table; "" if there is none.
std::string type_name(void* const* table) {
  if (!lies_in(table - 2, PF_R) || !lies_in(table[-1], PF_R)) return {};
  const char* const* type = static_cast<const char* const*>(table[-1]);
  if (!lies_in(type[1], PF_R)) return {};
  return type[1][0] == '*' ? type[1] + 1 : type[1];
}

std::size_t count_slots(void* const* table) {
  std::size_t count = 0;
  while (count < kMostSlots && lies_in(table[count], PF_X)) ++count;
  return count;
}

// Fills `runtime` from what the loaded `library` (a handle of dlopen's) depends on: the
// runtime that it calls itself, whatever others are loaded beside it. Returns "" or what
// is missing.
std::string find_runtime(void* library, Runtime& runtime) {
  const std::array<std::pair<const char*, void*>, 7> wanted = {{
      {"cudaGetDevice", &runtime.get_device},
      {"cudaSetDevice", &runtime.set_device},
      {"cudaEventCreateWithFlags", &runtime.event_create},
      {"cudaEventRecord", &runtime.event_record},
      {"cudaEventQuery", &runtime.event_query},
      {"cudaStreamIsCapturing", &runtime.is_capturing},
      {"cudaGetLastError", &runtime.last_error},
  }};
  for (const auto& [name, target] : wanted) {
    void* found = dlsym(library, name);
    if (found == nullptr) return std::string("there is no ") + name;
    *static_cast<void**>(target) = found;
  }
  return {};
}

using Any = std::uintptr_t (*)(std::uintptr_t, std::uintptr_t, std::uintptr_t,
                               std::uintptr_t, std::uintptr_t, std::uintptr_t);

std::atomic<Any> watched_function = nullptr;
std::atomic<std::size_t> calls = 0;

// Stands for a function whose parameters are not known: passes on what the registers
// hold, as its last act, so that what else was passed stays where it is.
std::uintptr_t on_watched(std::uintptr_t a, std::uintptr_t b, std::uintptr_t c,
                          std::uintptr_t d, std::uintptr_t e, std::uintptr_t f) {
  calls.fetch_add(1, std::memory_order_relaxed);
  return watched_function.load(std::memory_order_relaxed)(a, b, c, d, e, f);
}

}  // namespace

bool is_code(const void* address) { return lies_in(address, PF_X); }

std::string find_torch(const char* path, Torch& torch) {
  // The handle is never closed: the library stays as long as torch does.
  void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return std::string(path) + " is not loaded";
  std::atomic<void**>* object = nullptr;
  if (!look_up(library, "_ZN3c104cuda20CUDACachingAllocator9allocatorE", object)) {
    return "c10::cuda::CUDACachingAllocator::allocator is missing";
  }
  if (!look_up(library, "_ZN3c104cuda9GetDeviceEPa", torch.get_device)) {
    return "c10::cuda::GetDevice is missing";
  }
  if (!look_up(library, "_ZN3c104cuda20getCurrentCUDAStreamEa", torch.current_stream)) {
    return "c10::cuda::getCurrentCUDAStream is missing";
  }
  if (!look_up(library, "_ZNK3c104cuda10CUDAStream6streamEv", torch.stream_handle)) {
    return "c10::cuda::CUDAStream::stream is missing";
  }
  if (std::string fault = find_runtime(library, torch.runtime); !fault.empty()) {
    return fault;
  }
  torch.object = object->load();
  if (torch.object == nullptr) return "torch has no CUDA allocator yet";
  torch.table = static_cast<void* const*>(torch.object[0]);
  const std::string name = type_name(torch.table);
  if (name != kNative) {
    return "its CUDA allocator is not the native one but " +
           (name.empty() ? std::string("of an unknown type") : name);
  }
  torch.slots = count_slots(torch.table);
  if (torch.slots < kFewestSlots || torch.slots >= kMostSlots) {
    return "its allocator has " + std::to_string(torch.slots) + " virtual functions";
  }
  return {};
}

Slots::Slots(const Torch& torch)
    : torch_(torch), copy_(torch.table - 2, torch.table + torch.slots) {
  __atomic_store_n(torch_.object, static_cast<void*>(copy_.data() + 2), __ATOMIC_RELEASE);
}

void Slots::exchange(std::size_t slot, void* function) {
  __atomic_store_n(&copy_[2 + slot], function, __ATOMIC_RELEASE);
}

void Slots::watch(std::size_t slot) {
  watched_ = slot;
  before_ = copy_[2 + slot];
  watched_function.store(reinterpret_cast<Any>(before_));
  calls.store(0);
  exchange(slot, reinterpret_cast<void*>(&on_watched));
}

std::size_t Slots::stop_watching() {
  exchange(watched_, before_);
  return calls.load();
}

}  // namespace memplan::cuda
