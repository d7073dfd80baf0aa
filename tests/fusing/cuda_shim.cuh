// What device.cuh stands for, on a CPU: threads of a block are OpenMP's, and run one
// block after the other. With one thread, phases between barriers are plain loops.
#pragma once

#include <omp.h>

#include <cmath>
#include <cstring>

using std::erf, std::exp, std::expm1, std::log1p, std::tanh;  // of float, as in CUDA

#define __global__
#define __shared__
#define __launch_bounds__(threads)
#define DEVICE inline
#define PHASE static
#define UNROLL
#define BARRIER _Pragma("omp barrier") (void)0

struct Position {
    int x;
};
static thread_local Position threadIdx;
static Position blockIdx, gridDim;

constexpr int LANES = 1;

struct Half {
    unsigned short bits;
};
struct Bfloat {
    unsigned short bits;
};

DEVICE float infinity() { return __builtin_huge_valf(); }
DEVICE float not_a_number() { return __builtin_nanf(""); }

template <typename To, typename From>
DEVICE To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

DEVICE float widen(float value) { return value; }
DEVICE float widen(Half value) { return same_bits<_Float16>(value.bits); }
DEVICE float widen(Bfloat value) {
    return same_bits<float>(static_cast<unsigned>(value.bits) << 16);
}
DEVICE void narrow(float value, float& to) { to = value; }
DEVICE void narrow(float value, Half& to) {
    to.bits = same_bits<unsigned short>(static_cast<_Float16>(value));
}
DEVICE void narrow(float value, Bfloat& to) {
    const unsigned bits = same_bits<unsigned>(value);
    const unsigned rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    to.bits = static_cast<unsigned short>(value != value ? 0x7fff : rounded);
}

template <typename Narrow>
DEVICE float fetch(const Narrow* from) {
    return widen(*from);
}
DEVICE float larger(float one, float other) {
    return other > one || other != other ? other : one;
}
DEVICE float exchanged(float value, int) { return value; }
