// The stretch of the clock that the timeline and the packing both show.
// The clock counts events (allocations and frees); or it is shown as seconds.
class Range {
  constructor(ticks, moments, times, named = true) {
    this.named = named; // whether places on the axis mean anything
    this.ticks = Math.max(ticks, 1);
    this.moments = moments; // the tick of each moment
    this.times = times; // and its seconds
    this.inSeconds = false;
    this.listeners = [];
    this.reset();
  }

  get whole() {
    return this.inSeconds ? [0, Math.max(this.times.at(-1) ?? 0, 1e-9)] : [0, this.ticks];
  }

  reset() {
    [this.low, this.high] = this.whole;
    this.changed();
  }

  // Where a tick lies on the axis; between moments, in proportion. What was never freed
  // lasts to the end, though no time passes after the last event.
  at(tick) {
    if (!this.inSeconds) return tick;
    if (tick >= this.ticks) return this.whole[1];
    const i = lastUpTo(this.moments, tick);
    if (i < 0) return 0;
    if (i + 1 >= this.moments.length) return this.times[i];
    const part = (tick - this.moments[i]) / (this.moments[i + 1] - this.moments[i]);
    return this.times[i] + part * (this.times[i + 1] - this.times[i]);
  }

  // The last moment up to a place on the axis.
  momentAt(x) {
    return Math.max(0, lastUpTo(this.inSeconds ? this.times : this.moments, x));
  }

  // The last moment up to a tick.
  momentOfTick(tick) {
    return Math.max(0, lastUpTo(this.moments, tick));
  }

  toggle(inSeconds) {
    if (inSeconds === this.inSeconds) return;
    const ends = [this.low, this.high].map((x) => this.momentAt(x));
    const all = this.low <= this.whole[0] && this.high >= this.whole[1];
    this.inSeconds = inSeconds;
    const place = (i) => (inSeconds ? this.times[i] : this.moments[i]);
    if (all || place(ends[1]) <= place(ends[0])) this.reset();
    else this.set(place(ends[0]), place(ends[1]));
  }

  set(low, high) {
    const [first, last] = this.whole;
    const least = (last - first) * 1e-7 + (this.inSeconds ? 1e-9 : 4);
    const span = Math.min(Math.max(high - low, Math.min(least, last - first)), last - first);
    this.low = Math.min(Math.max(low, first), last - span);
    this.high = this.low + span;
    this.changed();
  }

  zoom(factor, at) {
    this.set(at - (at - this.low) * factor, at + (this.high - at) * factor);
  }

  pan(by) {
    this.set(this.low + by, this.high + by);
  }

  label(x, step = 0) {
    if (!this.named) return "";
    if (!this.inSeconds) return countText(x);
    if (!step) return secondsText(x);
    const [scale, unit] = step >= 0.1 ? [1, "s"] : step >= 1e-4 ? [1e3, "ms"] : [1e6, "µs"];
    const digits = Math.max(0, -Math.floor(Math.log10(step * scale) + 1e-9));
    return `${(x * scale).toFixed(digits)} ${unit}`;
  }

  changed() {
    for (const listener of this.listeners) listener();
  }
}
