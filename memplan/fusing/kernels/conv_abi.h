// What a library of convolution kernels exports.
#pragma once

#include "conv_direct.h"
#include "conv_winograd.h"

#define MEMPLAN_EXPORT extern "C" __attribute__((visibility("default")))

MEMPLAN_EXPORT void memplan_conv_direct(const void* call, int threads) {
  memplan::direct(*static_cast<const memplan::Convolution*>(call), threads);
}

MEMPLAN_EXPORT void memplan_pack_direct(const void* job, int threads) {
  memplan::pack_direct(*static_cast<const memplan::Packing*>(job), threads);
}

MEMPLAN_EXPORT void memplan_conv_winograd2(const void* call, int threads) {
  memplan::winograd<2>(*static_cast<const memplan::Convolution*>(call), threads);
}

MEMPLAN_EXPORT void memplan_pack_winograd2(const void* job, int threads) {
  memplan::pack_winograd<2>(*static_cast<const memplan::Packing*>(job), threads);
}

MEMPLAN_EXPORT void memplan_conv_winograd4(const void* call, int threads) {
  memplan::winograd<4>(*static_cast<const memplan::Convolution*>(call), threads);
}

MEMPLAN_EXPORT void memplan_pack_winograd4(const void* job, int threads) {
  memplan::pack_winograd<4>(*static_cast<const memplan::Packing*>(job), threads);
}

MEMPLAN_EXPORT int64_t memplan_padded_columns(int64_t k) {
  return memplan::Panels(k).padded();
}
