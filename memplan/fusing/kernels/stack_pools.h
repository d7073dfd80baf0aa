// One step on rows of a buffer: windows pooled, operations applied, rows stored.
#pragma once

#include "stack_call.h"
#include "stack_vector.h"

namespace memplan {

struct Axis {
  int kernel, stride, padding, dilation;
  constexpr int reach() const { return dilation * (kernel - 1) + 1; }
  // Rows of input that one window shares with the next.
  constexpr int keep() const { return reach() > stride ? reach() - stride : 0; }
};

struct Shape {
  bool max;
  Axis down, across;
  bool ceil, count_padding;
  int divisor;  // 0: the number of elements

  constexpr float outside() const { return max ? -__builtin_inff() : 0.0f; }
  constexpr int area() const { return down.kernel * across.kernel; }
  // Every window's sum is divided by the same number.
  constexpr bool even() const {
    return divisor != 0 ||
           (!ceil && (count_padding || (down.padding == 0 && across.padding == 0)));
  }
};

// What a step does to some rows of a group of channels.
struct Rows {
  const Call* call;
  int operand;     // the first of its operands
  Spot spot;       // of the first vector
  int vectors;     // of channels
  int64_t point;   // floats of a point in buffers
  const float* in;  // column 0 of the first row there is
  int64_t in_row;
  int64_t skip;    // rows between windows, to be passed over
  int64_t first, count, width;  // of the output
  bool resume, save;  // rows of the band before were kept; rows are to be kept
  float* kept;
  const float* shares_down;  // 1 / rows, and columns, that a window counts
  const float* shares_across;
  float* out;
  int64_t out_row;
  float outside;   // what the next step finds around the plane
  bool packed;     // results: rows without anything between them

  MEMPLAN_INLINE int64_t unit() const { return kLast ? point : 1; }
};

template <Shape P, bool Exact>
struct Pooling {
  static constexpr int keep = P.down.keep();

  static MEMPLAN_INLINE Vec join(Vec a, Vec b) {
    if constexpr (!P.max) return a + b;
    return Exact ? larger_or_nan(a, b) : larger(a, b);
  }

  static MEMPLAN_INLINE Vec read(const float* p, int lanes) {
    if constexpr (kLast || P.across.stride == 1) return load(p);
    if constexpr (P.across.stride == 2) return load_even(p);
    return load_every(p, P.across.stride, lanes);
  }

  // The columns of a window in one row.
  static MEMPLAN_INLINE Vec across(const float* p, int64_t unit, int lanes) {
    Vec sum = read(p, lanes);
    MEMPLAN_UNROLL
    for (int i = 1; i < (P.across.kernel <= 16 ? P.across.kernel : 1); ++i)
      sum = join(sum, read(p + i * P.across.dilation * unit, lanes));
    if constexpr (P.across.kernel > 16)
      for (int i = 1; i < P.across.kernel; ++i)
        sum = join(sum, read(p + i * P.across.dilation * unit, lanes));
    return sum;
  }

  static MEMPLAN_INLINE Vec down(const Vec* rows) {
    Vec sum = rows[0];
    MEMPLAN_UNROLL
    for (int i = 1; i < P.down.kernel; ++i) sum = join(sum, rows[i * P.down.dilation]);
    return sum;
  }

  // Windows that share no rows.
  template <class Emit>
  static MEMPLAN_INLINE void apart(const float* p, const Rows& r, int lanes,
                                   Emit emit) {
    for (int64_t i = 0; i < r.count; ++i, p += P.down.stride * r.in_row) {
      Vec sum = across(p, r.unit(), lanes);
      for (int k = 1; k < P.down.kernel; ++k)
        sum = join(sum, across(p + k * P.down.dilation * r.in_row, r.unit(), lanes));
      emit(i, sum);
    }
  }

  // Windows that share rows, which are kept from one to the next, and from band to
  // band; two outputs at a time, so that what both look at is joined once.
  template <class Emit>
  static MEMPLAN_INLINE void along(const float* p, const Rows& r, int lanes,
                                   float* kept, Emit emit) {
    constexpr int stride = P.down.stride;
    Vec rows[keep + 2 * stride];
    if (r.resume) {
      MEMPLAN_UNROLL
      for (int i = 0; i < keep; ++i) rows[i] = load(kept + i * kLanes);
    } else {
      MEMPLAN_UNROLL
      for (int i = 0; i < keep; ++i, p += r.in_row)
        rows[i] = across(p, r.unit(), lanes);
    }
    int64_t i = 0;
    for (; i + 2 <= r.count; i += 2) {
      MEMPLAN_UNROLL
      for (int k = keep; k < keep + 2 * stride; ++k, p += r.in_row)
        rows[k] = across(p, r.unit(), lanes);
      if constexpr (stride == 1 && P.down.dilation == 1) {
        Vec both = rows[1];
        MEMPLAN_UNROLL
        for (int k = 2; k < P.down.kernel; ++k) both = join(both, rows[k]);
        emit(i, join(rows[0], both));
        emit(i + 1, join(both, rows[P.down.kernel]));
      } else {
        emit(i, down(rows));
        emit(i + 1, down(rows + stride));
      }
      MEMPLAN_UNROLL
      for (int k = 0; k < keep; ++k) rows[k] = rows[k + 2 * stride];
    }
    if (i < r.count) {
      MEMPLAN_UNROLL
      for (int k = keep; k < keep + stride; ++k, p += r.in_row)
        rows[k] = across(p, r.unit(), lanes);
      emit(i, down(rows));
      MEMPLAN_UNROLL
      for (int k = 0; k < keep; ++k) rows[k] = rows[k + stride];
    }
    if (r.save) {
      MEMPLAN_UNROLL
      for (int k = 0; k < keep; ++k) store(kept + k * kLanes, rows[k]);
    }
  }

  template <class Emit>
  static MEMPLAN_INLINE void walk(const float* p, const Rows& r, int lanes, float* kept,
                                  Emit emit) {
    if constexpr (keep == 0) {
      apart(p, r, lanes, emit);
    } else {
      along(p, r, lanes, kept, emit);
    }
  }

  // Sums to averages.
  static MEMPLAN_INLINE Vec mean(Vec sum, const Rows& r, int64_t y, int64_t x) {
    if constexpr (P.max) return sum;
    if constexpr (P.even()) {
      return sum * (1.0f / (float)(P.divisor != 0 ? P.divisor : P.area()));
    } else {
      const float row = r.shares_down[r.first + y];
      return sum * (kLast ? splat(row * r.shares_across[x])
                          : row * load(r.shares_across + x));
    }
  }
};

// The step's rows, from one buffer to the other. Columns are gone through one after the
// other (one vector of them, or one point), each from top to bottom.
template <Shape P, class After, bool Exact>
void pool_rows(const Rows& rows) {
  const Rows r = rows;  // so that no store can be taken to change it
  typedef Pooling<P, Exact> Pool;
  constexpr int step = kLast ? 1 : kLanes;
  const float* in = r.in + r.skip * r.in_row - P.across.padding * r.unit();
  float* kept = r.kept;
  for (int v = 0; v < r.vectors; ++v) {
    const Spot spot = r.spot.vector(*r.call, v);
    const After after(*r.call, r.operand, spot);
    float* out = r.out + v * kLanes;
    for (int64_t x = 0; x < r.width; x += step) {
      const int64_t left = r.width - x;
      const int lanes = kLast ? spot.lanes : left < kLanes ? (int)left : kLanes;
      const float* p = in + v * kLanes + x * P.across.stride * r.unit();
      Pool::walk(p, r, lanes, kept,
                 [&](int64_t y, Vec sum) __attribute__((always_inline)) {
                   const int64_t point = (r.first + y) * r.width + x;
                   const Vec value = after(Pool::mean(sum, r, y, x), point, lanes);
                   if (kLast || lanes == kLanes) {
                     store(out + y * r.out_row + x * r.unit(), value);
                   } else if (r.packed) {
                     store_some(out + y * r.out_row + x, value, lanes);
                   } else {
                     store(out + y * r.out_row + x,
                           first_lanes(value, lanes, splat(r.outside)));
                   }
                 });
      kept += Pool::keep * kLanes;
    }
    // What the next step finds beside the plane.
    const int64_t each = kLast ? r.unit() : kLanes;
    const int64_t done = kLast ? r.width * each : (r.width + each - 1) / each * each;
    for (int64_t x = done; x < r.out_row; x += each)
      for (int64_t y = 0; y < r.count; ++y)
        store(out + y * r.out_row + x, splat(r.outside));
  }
}

// How large values may get, given that they are at most `most` before the step; `worst`
// is the largest on the way. Where that is finite no NaN can come up.
template <Shape P, class After>
void bound_step(const Call& call, int operand, Spot spot, Vec& most, Vec& worst) {
  if constexpr (!P.max) {
    worst = larger_or_nan(worst, most * (float)P.area());
    if constexpr (P.divisor != 0)
      most *= (float)P.area() / (float)(P.divisor < 0 ? -P.divisor : P.divisor);
  }
  After(call, operand, spot).bound(most, worst);
}

struct Step {
  Shape shape;
  int operand;
  void (*rows[2])(const Rows&);  // the second minds NaN
  void (*bound)(const Call&, int, Spot, Vec&, Vec&);
};

template <Shape P, class After>
constexpr Step step_of(int operand) {
  return {P,
          operand,
          {pool_rows<P, After, false>, pool_rows<P, After, P.max>},
          bound_step<P, After>};
}

// Rows of a plane, from memory to the first buffer of a sequence.

// What fills a buffer: rows [from, to) of the plane, which starts at `memory`.
struct Loading {
  const Call* call;
  int operand;
  Spot spot;
  int vectors;
  int64_t unit;
  const Value* memory;
  int64_t pixel, width;
  int64_t from, to;
  float* out;  // column 0 of row `from`
  int64_t out_row;
  float outside;
};

// The larger of magnitudes, as integers: NaN and infinity are larger than all others.
MEMPLAN_INLINE void note(Ints& most, Vec value) {
  const Ints size = bits(magnitude(value));
  most = size > most ? size : most;
}

// Channels last: points in blocks, so that memory is read nearly in order.
template <class Before>
void load_points(const Loading& l, Ints& most) {
  constexpr int64_t block = __is_empty(Before) ? 1 : 16;  // operands are read for each
  for (int64_t y = l.from; y < l.to; ++y) {
    float* out = l.out + (y - l.from) * l.out_row;
    const Value* memory = l.memory + y * l.width * l.pixel;
    for (int64_t start = 0; start < l.width; start += block) {
      const int64_t end = start + block < l.width ? start + block : l.width;
      for (int v = 0; v < l.vectors; ++v) {
        const Spot spot = l.spot.vector(*l.call, v);
        const Before before(*l.call, l.operand, spot);
        const int64_t at = v * kLanes;
        for (int64_t x = start; x < end; ++x) {
          const Vec read = load_lanes(memory + x * l.pixel + at, spot.lanes);
          const Vec value = before(read, y * l.width + x, spot.lanes);
          note(most, value);
          store(out + x * l.unit + at, value);
        }
      }
    }
    for (int64_t at = l.width * l.unit; at < l.out_row; at += kLanes)
      store(out + at, splat(l.outside));
  }
}

template <class Before>
void load_plane(const Loading& l, Ints& most) {
  const Before before(*l.call, l.operand, l.spot);
  for (int64_t y = l.from; y < l.to; ++y) {
    float* out = l.out + (y - l.from) * l.out_row;
    const int64_t first = y * l.width;
    const Value* memory = l.memory + first;
    int64_t x = 0;
    for (; x + kLanes <= l.width; x += kLanes) {
      const Vec value = before(load(memory + x), first + x, kLanes);
      note(most, value);
      store(out + x, value);
    }
    if (x < l.width) {
      const int lanes = (int)(l.width - x);
      const Vec value = before(load_some(memory + x, lanes), first + x, lanes);
      note(most, first_lanes(value, lanes, Vec{}));
      store(out + x, first_lanes(value, lanes, splat(l.outside)));
      x += kLanes;
    }
    for (; x < l.out_row; x += kLanes) store(out + x, splat(l.outside));
  }
}

// Returns the largest magnitude, lane by lane; NaN is larger than infinity.
template <class Before>
Vec load_rows(const Loading& rows) {
  const Loading l = rows;  // so that no store can be taken to change it
  Ints most{};
  if constexpr (kLast) {
    load_points<Before>(l, most);
  } else {
    load_plane<Before>(l, most);
  }
  return floats(most);
}

}  // namespace memplan
