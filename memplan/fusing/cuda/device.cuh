// What kernels need of the hardware: types of values, how they are read and written,
// and the operations that have instructions of their own. Nothing of the toolkit's
// headers, which a machine with a driver alone does not have.
#pragma once

#define DEVICE __device__ __forceinline__
#define PHASE static __device__ __noinline__  // alike steps share one
#define UNROLL _Pragma("unroll")
#define BARRIER __syncthreads()

constexpr int THREADS = 128;  // of a block (4.4)
constexpr int LANES = 32;     // threads that run in step

struct Half {
    unsigned short bits;
};
struct Bfloat {
    unsigned short bits;
};

DEVICE float infinity() { return __int_as_float(0x7f800000); }
DEVICE float not_a_number() { return __int_as_float(0x7fffffff); }

DEVICE float widen(float value) { return value; }
DEVICE float widen(Half value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}
DEVICE float widen(Bfloat value) {
    return __int_as_float(static_cast<int>(value.bits) << 16);
}

DEVICE void narrow(float value, float& to) { to = value; }
DEVICE void narrow(float value, Half& to) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(value));
}
DEVICE void narrow(float value, Bfloat& to) {
    const unsigned bits = static_cast<unsigned>(__float_as_int(value));
    // To the nearest, and of two to the even one; a NaN may not become infinite.
    const unsigned rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    to.bits = static_cast<unsigned short>(value != value ? 0x7fff : rounded);
}

// What no kernel writes to, by the way of read-only data.
DEVICE float fetch(const float* from) { return __ldg(from); }
template <typename Narrow>
DEVICE float fetch(const Narrow* from) {
    Narrow value;
    value.bits = __ldg(&from->bits);
    return widen(value);
}

// The larger of two values, NaN if one of them is.
DEVICE float larger(float one, float other) {
#if __CUDA_ARCH__ >= 800
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(one), "f"(other));
    return found;
#else
    return other > one || other != other ? other : one;
#endif
}

// The value that the lane has whose number differs by these bits.
DEVICE float exchanged(float value, int bits) {
    return __shfl_xor_sync(0xffffffffu, value, bits);
}
