// Live bytes over the run, one layer a category. Where many events fall on one pixel,
// the paler part is between the least and the most that was alive there.
class Timeline extends Chart {
  constructor(canvas, page) {
    super(canvas);
    this.page = page;
    const { moments, live, total } = page;
    this.moments = moments;
    this.live = live; // a Float64Array a category
    this.total = total;
    this.top = Math.max(page.peak * 1.12, 1);
    this.draw = () => this.drawn();
    navigable(this, page.range, null);
    this.clicked = ({ x }) => page.choose(this.momentUnder(x));
    canvas.addEventListener("pointermove", (event) => {
      const { x, within } = this.inside(event);
      page.hover(within ? { moment: this.momentUnder(x), from: this } : null, event);
    });
    canvas.addEventListener("pointerleave", () => page.hover(null));
    page.range.listeners.push(() => this.refresh());
  }

  // Of the moments on a pixel, the one with most alive: so a peak can be met.
  momentUnder(x) {
    const [first, last] = this.momentsOf(Math.floor(x) - 0.5, Math.floor(x) + 1.5);
    let most = first;
    for (let i = first + 1; i <= last; i++) if (this.total[i] > this.total[most]) most = i;
    return most;
  }

  momentsOf(left, right) {
    const { range } = this.page;
    const scale = (range.high - range.low) / this.width;
    const first = range.momentAt(range.low + left * scale);
    const last = range.momentAt(range.low + right * scale);
    return [first, Math.max(first, last)];
  }

  place(tick) {
    const { range } = this.page;
    return ((range.at(tick) - range.low) / (range.high - range.low)) * this.width;
  }

  drawn() {
    const { page } = this;
    const { range } = page;
    this.bytesAxis(0, this.top, "live bytes");
    this.acrossAxis(range.low, range.high, (x, step) => range.label(x, step));
    this.clipped((context) => {
      this.layers(context);
      this.steps(context);
    });
    this.marks();
  }

  layers(context) {
    const { range, colours, shown } = this.page;
    const pixels = Math.round(this.width * this.ratio);
    const scale = (range.high - range.low) / pixels;
    const place = range.inSeconds ? range.times : range.moments;
    const up = this.height / this.top;
    context.save();
    context.scale(1 / this.ratio, 1);
    let next = Math.max(0, lastUpTo(place, range.low));
    for (let column = 0; column < pixels; column++) {
      const right = range.low + (column + 1) * scale;
      const first = next;
      let [most, least] = [first, first];
      while (next + 1 < place.length && place[next + 1] < right) {
        next++;
        if (this.total[next] > this.total[most]) most = next;
        if (this.total[next] < this.total[least]) least = next;
      }
      if (this.total[most] > this.total[least]) {
        context.globalAlpha = 0.42;
        this.stack(context, column, most, up, colours, shown);
        context.globalAlpha = 1;
      }
      this.stack(context, column, least, up, colours, shown);
    }
    context.restore();
  }

  stack(context, column, moment, up, colours, shown) {
    let base = this.height;
    for (const category of shown) {
      const bytes = this.live[category][moment];
      if (bytes <= 0) continue;
      const high = bytes * up;
      context.fillStyle = colours[category];
      context.fillRect(column, base - high, 1, high);
      base -= high;
    }
  }

  steps(context) {
    const { steps } = this.page;
    if (!steps.length) return;
    context.fillStyle = INK.step;
    let last = -Infinity;
    for (let i = 0; i < steps.length; i++) {
      const x = this.place(steps[i]);
      if (x < 0 || x > this.width || x - last < 8) continue;
      last = x;
      for (let y = 0; y < this.height; y += 6) context.fillRect(Math.round(x), y, 1, 3);
    }
  }

  // Numbers of steps, the peak, what ran out of memory, and the moment chosen.
  marks() {
    const { context, page } = this;
    const { steps } = page;
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    let free = -Infinity;
    for (let i = 0; i < steps.length; i++) {
      const x = MARGIN.left + this.place(steps[i]);
      if (x < MARGIN.left - 1 || x > MARGIN.left + this.width - 12 || x < free) continue;
      context.fillStyle = INK.muted;
      const text = free === -Infinity ? `step ${i + 1}` : `${i + 1}`;
      context.fillText(text, x + 3, MARGIN.top - 6);
      free = x + context.measureText(text).width + 14;
    }
    if (page.moment !== null) this.line(page.moment, INK.chosen, 2);
    if (page.hovered?.moment !== undefined) this.line(page.hovered.moment, INK.hover, 1);
    this.flag(page.peakMoment, `peak ${bytesText(page.peak)}`, INK.peak);
    for (const oom of page.ooms) {
      this.flag(Math.max(0, lastUpTo(this.moments, oom.tick)), `out of memory: ${bytesText(oom.size)} asked for`, INK.oom);
    }
  }

  flag(moment, text, colour) {
    if (moment < 0) return;
    const x = this.place(this.moments[moment]);
    if (x < -1 || x > this.width + 1) return;
    const y = this.height * (1 - this.total[moment] / this.top);
    const { context } = this;
    context.save();
    context.translate(MARGIN.left + x, MARGIN.top + y);
    context.fillStyle = colour;
    context.beginPath();
    context.moveTo(0, -1);
    context.lineTo(-4.5, -9);
    context.lineTo(4.5, -9);
    context.fill();
    context.font = "600 11.5px " + INK.font;
    const wide = context.measureText(text).width;
    const from = Math.min(Math.max(-wide / 2, -x - 4), this.width - x - wide);
    context.fillStyle = INK.paper;
    context.globalAlpha = 0.85;
    context.fillRect(from - 3, -24, wide + 6, 14);
    context.globalAlpha = 1;
    context.fillStyle = colour;
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    context.fillText(text, from, -13);
    context.restore();
  }

  line(moment, colour, wide) {
    const x = this.place(this.moments[moment]);
    if (x < 0 || x > this.width) return;
    this.context.fillStyle = colour;
    this.context.fillRect(MARGIN.left + x - wide / 2, MARGIN.top, wide, this.height);
  }
}
