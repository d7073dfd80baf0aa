// What a library of kernels exports.
#pragma once

#include "conv_direct.h"
#include "conv_pack.h"

#define MEMPLAN_EXPORT extern "C" __attribute__((visibility("default")))

MEMPLAN_EXPORT void memplan_conv_direct(const void* call, int threads) {
  memplan::direct(*static_cast<const memplan::Convolution*>(call), threads);
}

MEMPLAN_EXPORT void memplan_pack_direct(const void* job, int threads) {
  memplan::pack_direct(*static_cast<const memplan::Packing*>(job), threads);
}

MEMPLAN_EXPORT int64_t memplan_padded_columns(int64_t k) {
  return memplan::Panels(k).padded();
}
