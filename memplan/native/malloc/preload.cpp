// A library to preload: it stands before the C library's malloc, or another's that is
// preloaded after it, and serves large requests as LargeBlocks does. All others, and
// what it cannot serve, go on to the next.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "malloc/large.h"

namespace {

using memplan::LargeBlocks;

// From here on the C library, too, maps blocks one by one, at first.
constexpr size_t kLarge = 256 << 10;
constexpr size_t kPage = 4096;

struct Next {
  void* (*malloc)(size_t);
  void (*free)(void*);
  void* (*calloc)(size_t, size_t);
  void* (*realloc)(void*, size_t);
  void* (*memalign)(size_t, size_t);
  int (*posix_memalign)(void**, size_t, size_t);
  void* (*aligned_alloc)(size_t, size_t);
  size_t (*malloc_usable_size)(void*);
};

Next next;
std::atomic<bool> ready = false;
alignas(LargeBlocks) char storage[sizeof(LargeBlocks)];
LargeBlocks* blocks = nullptr;
// Between here and `ready`, requests of the loader itself: a few, and never freed.
alignas(64) char early[64 << 10];
size_t early_used = 0;
thread_local bool starting __attribute__((tls_model("initial-exec"))) = false;

template <typename Function>
void find(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  if (function == nullptr) abort();  // no C library has none
}

void start() {
  starting = true;
  find(next.malloc, "malloc");
  find(next.free, "free");
  find(next.calloc, "calloc");
  find(next.realloc, "realloc");
  find(next.memalign, "memalign");
  find(next.posix_memalign, "posix_memalign");
  find(next.aligned_alloc, "aligned_alloc");
  find(next.malloc_usable_size, "malloc_usable_size");
  ready.store(true, std::memory_order_release);
  // Its first nodes are small: they come from the next allocator.
  blocks = new (storage) LargeBlocks;
  pthread_atfork([] { blocks->lock(); }, [] { blocks->unlock(); },
                 [] { blocks->unlock(); });
  starting = false;
}

// The first request comes before any thread is started, from the loader.
bool is_ready() {
  if (ready.load(std::memory_order_acquire)) return true;
  if (!starting) start();
  return ready.load(std::memory_order_relaxed);
}

void* early_block(size_t bytes) {
  const size_t rounded = (bytes + 63) & ~size_t{63};
  if (rounded > sizeof(early) - early_used) return nullptr;
  void* block = early + early_used;
  early_used += rounded;
  return block;
}

bool is_early(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(early) <
         sizeof(early);
}

bool is_ours(const void* pointer) {
  return blocks != nullptr && blocks->contains(pointer);
}

void* large(size_t bytes, bool zeroed = false) {
  if (bytes < kLarge || blocks == nullptr || bytes > SIZE_MAX / 2) return nullptr;
  return blocks->allocate(bytes, zeroed);
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void* malloc(size_t bytes) {
  if (!is_ready()) return early_block(bytes);
  if (void* block = large(bytes)) return block;
  return next.malloc(bytes);
}

EXPORTED void free(void* pointer) {
  if (is_ours(pointer)) {
    const int error = errno;  // free leaves it alone
    blocks->release(pointer);
    errno = error;
  } else if (!is_early(pointer) && is_ready()) {
    next.free(pointer);
  }
}

EXPORTED void* calloc(size_t count, size_t bytes) {
  size_t whole;
  const bool fits = !__builtin_mul_overflow(count, bytes, &whole);
  if (!is_ready()) return fits ? early_block(whole) : nullptr;  // zeros, as never used
  if (void* block = fits ? large(whole, true) : nullptr) return block;
  return next.calloc(count, bytes);
}

EXPORTED size_t malloc_usable_size(void* pointer) {
  if (is_ours(pointer)) return blocks->size_of(pointer);
  if (is_early(pointer) || !is_ready()) return 0;
  return next.malloc_usable_size(pointer);
}

EXPORTED void* realloc(void* pointer, size_t bytes) {
  if (pointer == nullptr) return malloc(bytes);
  const bool early_one = is_early(pointer);
  if (!early_one && !is_ours(pointer) && bytes < kLarge && is_ready()) {
    return next.realloc(pointer, bytes);
  }
  if (bytes == 0) {
    free(pointer);
    return nullptr;
  }
  // Of an early block it is only known where all of them end.
  const size_t had =
      early_one ? static_cast<size_t>(early + sizeof(early) - static_cast<char*>(pointer))
                : malloc_usable_size(pointer);
  if (is_ours(pointer) && bytes <= had && bytes > had / 2) return pointer;
  void* block = malloc(bytes);
  if (block == nullptr) return nullptr;
  memcpy(block, pointer, std::min(had, bytes));
  free(pointer);
  return block;
}

EXPORTED void* reallocarray(void* pointer, size_t count, size_t bytes) {
  size_t whole;
  if (__builtin_mul_overflow(count, bytes, &whole)) {
    errno = ENOMEM;
    return nullptr;
  }
  return realloc(pointer, whole);
}

EXPORTED int posix_memalign(void** result, size_t alignment, size_t bytes) {
  if (!is_ready()) return ENOMEM;
  if (alignment <= kPage && alignment % sizeof(void*) == 0 &&
      (alignment & (alignment - 1)) == 0 && alignment != 0) {
    if (void* block = large(bytes)) {
      *result = block;
      return 0;
    }
  }
  return next.posix_memalign(result, alignment, bytes);
}

EXPORTED void* aligned_alloc(size_t alignment, size_t bytes) {
  if (!is_ready()) return nullptr;
  if (alignment <= kPage && (alignment & (alignment - 1)) == 0 && alignment != 0) {
    if (void* block = large(bytes)) return block;
  }
  return next.aligned_alloc(alignment, bytes);
}

EXPORTED void* memalign(size_t alignment, size_t bytes) {
  if (!is_ready()) return nullptr;
  if (alignment <= kPage && (alignment & (alignment - 1)) == 0 && alignment != 0) {
    if (void* block = large(bytes)) return block;
  }
  return next.memalign(alignment, bytes);
}

// requests, live, most_live, kept, returned: what LargeCounts holds.
EXPORTED void memplan_malloc_counts(uint64_t* counts) {
  const memplan::LargeCounts found =
      blocks == nullptr ? memplan::LargeCounts{} : blocks->counts();
  counts[0] = found.requests;
  counts[1] = found.live;
  counts[2] = found.most_live;
  counts[3] = found.kept;
  counts[4] = found.returned;
}
