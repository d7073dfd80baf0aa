// Element-wise operations of one value, as torch defines them: NaN stays NaN.
#pragma once

DEVICE float relu(float x) { return x < 0.0f ? 0.0f : x; }

DEVICE float prelu(float x, float slope) { return x > 0.0f ? x : x * slope; }

DEVICE float clamped(float x, float low, float high) {
    const float above = x < low ? low : x;
    return above > high ? high : above;
}

DEVICE float elu(float x, float alpha) { return x > 0.0f ? x : alpha * expm1f(x); }

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }

DEVICE float gelu(float x) { return x * 0.5f * (1.0f + erff(x * 0.70710678118654752f)); }

DEVICE float gelu_tanh(float x) {
    const float inner = 0.79788456080286536f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner));
}

DEVICE float softplus(float x, float beta, float threshold) {
    return x * beta > threshold ? x : log1pf(expf(x * beta)) / beta;
}

DEVICE float mish(float x) { return x * tanhf(log1pf(expf(x))); }

DEVICE float hardsigmoid(float x) { return clamped(x + 3.0f, 0.0f, 6.0f) / 6.0f; }

DEVICE float hardswish(float x) { return x * clamped(x + 3.0f, 0.0f, 6.0f) / 6.0f; }

// What pooling does with two values of a window.
struct Max {
    static DEVICE float neutral() { return -infinity(); }
    static DEVICE float of(float one, float other) { return larger(one, other); }
};
struct Sum {
    static DEVICE float neutral() { return 0.0f; }
    static DEVICE float of(float one, float other) { return one + other; }
};

// Elements of a window along one axis: with the padding that torch counts, or without.
DEVICE int counted(int at, int stride, int padding, int kernel, int size, bool padded) {
    const int start = at * stride - padding;
    int stop = start + kernel;
    const int end = padded ? size + padding : size;
    stop = stop < end ? stop : end;
    return padded || start > 0 ? stop - start : stop;
}

// Rows, or columns, of one plane that a block needs: [start, stop) are in the plane,
// [first, last) are with the padding around it.
struct Span {
    int start, stop, first, last;

    DEVICE int made() const { return stop - start; }
    DEVICE bool has(int at) const { return at >= start && at < stop; }
    DEVICE int nearest(int at) const {
        return at < start ? start : at < stop ? at : stop - 1;
    }
};

DEVICE int least(int one, int other) { return one < other ? one : other; }
DEVICE int most(int one, int other) { return one > other ? one : other; }

// Of the plane behind the last pool: `length` outputs, or what is left of them.
DEVICE Span patch(int start, int length, int size) {
    const int stop = least(start + length, size);
    return {start, stop, start, stop};
}

// Of the plane before a pool: what its outputs look at.
DEVICE Span needed(Span out, int stride, int padding, int reach, int size) {
    const int first = out.start * stride - padding;
    const int last = (out.stop - 1) * stride - padding + reach;
    const int start = least(most(first, 0), size);
    return {start, most(least(last, size), start), first, last};
}
