#include "alloc/c10.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace memplan::c10 {
namespace {

// Two header words, two destructors and the four functions above.
constexpr std::size_t kVtableBytes = 8 * sizeof(void*);

static_assert(sizeof(DataPtr) == 32, "c10::DataPtr has 32 bytes");

template <typename Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

enum Outcome : int {
  kSound,
  kNullPointer,
  kForeignContext,
  kForeignDeleter,
  kForeignDevice,
  kCloneDiffers,
};

const char* describe(int outcome) {
  switch (outcome) {
    case kNullPointer: return "a request of 64 bytes returned no memory";
    case kForeignContext: return "a block's context is not its address";
    case kForeignDeleter: return "a block's deleter is not the allocator's own";
    case kForeignDevice: return "a block is not on the CPU";
    case kCloneDiffers: return "a block cloned through the shim differs";
    default: return "it failed in an unknown way";
  }
}

int try_out(const Symbols& symbols, Allocator* shim) {
  Allocator* base = symbols.get_allocator();
  unsigned char pattern[64];
  for (int i = 0; i < 64; ++i) pattern[i] = static_cast<unsigned char>(i * 7 + 1);
  {
    DataPtr block = base->allocate(sizeof pattern);
    if (block.data == nullptr) return kNullPointer;
    if (block.context.get() != block.data) return kForeignContext;
    if (block.context.get_deleter() != base->raw_deleter()) return kForeignDeleter;
    if (block.device_type != 0) return kForeignDevice;
    base->copy_data(block.data, pattern, sizeof pattern);
    if (std::memcmp(block.data, pattern, sizeof pattern) != 0) return kCloneDiffers;
  }
  if (symbols.clone != nullptr) {
    DataPtr copy = symbols.clone(shim, pattern, sizeof pattern);
    if (copy.data == nullptr) return kNullPointer;
    if (std::memcmp(copy.data, pattern, sizeof pattern) != 0) return kCloneDiffers;
  }
  return kSound;
}

// The size of the vtable that `allocator` uses, from the dynamic symbol table; 0 if
// its symbol is hidden.
std::size_t vtable_bytes(const Allocator* allocator) {
  void* vtable = *reinterpret_cast<void* const*>(allocator);
  Dl_info info;
  void* entry = nullptr;
  if (dladdr1(vtable, &info, &entry, RTLD_DL_SYMENT) == 0 || entry == nullptr) return 0;
  return static_cast<const ElfW(Sym)*>(entry)->st_size;
}

}  // namespace

std::string find_symbols(const std::string& path, Symbols& symbols) {
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return path + " is not loaded";
  look_up(library, "_ZN3c1015GetCPUAllocatorEv", symbols.get_allocator);
  look_up(library, "_ZN3c1015SetCPUAllocatorEPNS_9AllocatorEh", symbols.set_allocator);
  look_up(library, "_ZN3c109Allocator5cloneEPKvm", symbols.clone);
  if (symbols.get_allocator == nullptr) return "c10::GetCPUAllocator is missing";
  if (symbols.set_allocator == nullptr) return "c10::SetCPUAllocator is missing";
  void* (*reporter)() = nullptr;
  look_up(library, "_ZN3c1025profiledCPUMemoryReporterEv", reporter);
  look_up(library, "_ZN3c1025ProfiledCPUMemoryReporter3NewEPvm", symbols.report_new);
  look_up(library, "_ZN3c1025ProfiledCPUMemoryReporter6DeleteEPv", symbols.report_delete);
  if (reporter != nullptr && symbols.report_new && symbols.report_delete) {
    symbols.reporter = reporter();
  }
  return {};
}

std::string probe(const Symbols& symbols, Allocator* shim) {
  Allocator* base = symbols.get_allocator();
  if (base == nullptr) return "there is no CPU allocator";
  const std::size_t bytes = vtable_bytes(base);
  if (bytes != 0 && bytes != kVtableBytes) {
    return "the allocator has " + std::to_string(bytes / sizeof(void*)) +
           " vtable entries, not " + std::to_string(kVtableBytes / sizeof(void*));
  }
  const pid_t child = fork();
  if (child < 0) return std::string("cannot fork a test process: ") + std::strerror(errno);
  if (child == 0) _exit(try_out(symbols, shim));
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return std::string("lost the test process: ") + std::strerror(errno);
  }
  if (WIFSIGNALED(status)) {
    return "a test request crashed (" + std::string(strsignal(WTERMSIG(status))) + ")";
  }
  const int outcome = WEXITSTATUS(status);
  return outcome == kSound ? std::string() : describe(outcome);
}

}  // namespace memplan::c10
