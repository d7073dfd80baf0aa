// Kernels one after the other, whichever library each is from.
#pragma once

struct MemplanEntry {
  void (*kernel)(const void* call, int threads);
  const void* call;
};

// Runs `count` entries in order; each ends before the next begins.
extern "C" __attribute__((visibility("default"))) void memplan_tape(const void* entries,
                                                                    long count,
                                                                    int threads) {
  const auto* entry = static_cast<const MemplanEntry*>(entries);
  for (long i = 0; i < count; ++i) entry[i].kernel(entry[i].call, threads);
}
