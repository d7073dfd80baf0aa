/* Counts the live bytes of a process's heap, and the most of them: preload it.

   Blocks count by their usable size. Memory that is mapped directly counts, too, but
   not files. */

#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static atomic_long live, most;

static void change(long bytes) {
  long now = atomic_fetch_add(&live, bytes) + bytes;
  long before = atomic_load(&most);
  while (now > before && !atomic_compare_exchange_weak(&most, &before, now)) {
  }
}

static void *counted(void *block) {
  change((long)malloc_usable_size(block));
  return block;
}

long heap_live(void) { return atomic_load(&live); }
long heap_peak(void) { return atomic_load(&most); }
void heap_reset(void) { atomic_store(&most, atomic_load(&live)); }

void *malloc(size_t size) { return counted(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) {
  return counted(__libc_calloc(count, size));
}
void *memalign(size_t alignment, size_t size) {
  return counted(__libc_memalign(alignment, size));
}
void *aligned_alloc(size_t alignment, size_t size) {
  return memalign(alignment, size);
}
int posix_memalign(void **block, size_t alignment, size_t size) {
  *block = memalign(alignment, size);
  return *block ? 0 : ENOMEM;
}
void free(void *block) {
  change(-(long)malloc_usable_size(block));
  __libc_free(block);
}
void *realloc(void *block, size_t size) {
  long before = (long)malloc_usable_size(block);
  void *found = __libc_realloc(block, size);
  if (found || !size) {
    change((long)malloc_usable_size(found) - before);
  }
  return found;
}

/* Mappings: those that are counted, by address. */
enum { MAPPINGS = 4096 };
static _Atomic(void *) mapped[MAPPINGS];
static size_t bytes[MAPPINGS];

void *mmap(void *at, size_t size, int access, int flags, int file, off_t offset) {
  void *found = (void *)syscall(SYS_mmap, at, size, access, flags, file, offset);
  if (found == MAP_FAILED || !(flags & MAP_ANONYMOUS) || !(access & PROT_WRITE)) {
    return found;
  }
  for (int i = 0; i < MAPPINGS; i++) {
    void *none = NULL;
    if (atomic_compare_exchange_strong(&mapped[i], &none, found)) {
      bytes[i] = size;
      change((long)size);
      break;
    }
  }
  return found;
}
void *mmap64(void *at, size_t size, int access, int flags, int file,
             off_t offset) {
  return mmap(at, size, access, flags, file, offset);
}
int munmap(void *at, size_t size) {
  for (int i = 0; i < MAPPINGS; i++) {
    if (at && atomic_load(&mapped[i]) == at) {
      change(-(long)bytes[i]);
      atomic_store(&mapped[i], NULL);
      break;
    }
  }
  return (int)syscall(SYS_munmap, at, size);
}
