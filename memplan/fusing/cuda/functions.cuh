// Element-wise operations of one value, as torch defines them: NaN stays NaN.
#pragma once

DEVICE float magnitude(float x) { return fabsf(x); }

DEVICE float clamp(float x, float low, float high) {
    const float above = x < low ? low : x;
    return above > high ? high : above;
}

DEVICE float mish(float x) { return x * tanhf(log1pf(expf(x))); }

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
