// Boxes: buffers with a life across and bytes up. What is smaller than a pixel is not
// drawn on top of all else, but adds to its pixels as much as it covers of them.
class Boxes extends Chart {
  // set: columns lower, upper, left, right, bottom, size, category, site; count of each.
  constructor(canvas, page, set, range, bytes, options = {}) {
    super(canvas);
    Object.assign(this, { page, set, range, bytes, options });
    this.draw = () => this.drawn();
    navigable(this, range, bytes);
    this.clicked = (where) => options.clicked?.(this.under(where), where);
    canvas.addEventListener("pointermove", (event) => {
      const where = this.inside(event);
      const box = where.within ? this.under(where) : -1;
      const x = range.low + (where.x / this.width) * (range.high - range.low);
      page.hover(where.within ? { box, set, from: this, ...options.at?.(x) } : null, event);
    });
    canvas.addEventListener("pointerleave", () => page.hover(null));
    range.listeners.push(() => this.refresh());
  }

  // The box under a place; where there is none, the least one next to it.
  under({ x, y }) {
    const { set } = this;
    const [across, up] = this.scales();
    const at = this.range.low + x / across;
    const byte = this.bytes.high - y / up;
    let [found, least] = [-1, Infinity];
    const [roomX, roomY] = [1.5 / across, 1.5 / up];
    for (let i = 0; i < set.count; i++) {
      const [low, high, bottom] = [set.left[i], set.right[i], set.bottom[i]];
      const top = bottom + set.size[i];
      if (at < low - roomX || at >= high + roomX || byte < bottom - roomY || byte >= top + roomY) continue;
      if (at >= low && at < high && byte >= bottom && byte < top) return i;
      const area = (high - low) * set.size[i];
      if (area < least) [found, least] = [i, area];
    }
    return found;
  }

  scales() {
    return [this.width / (this.range.high - this.range.low), this.height / (this.bytes.high - this.bytes.low)];
  }

  drawn() {
    const { range, bytes } = this;
    this.bytesAxis(bytes.low, bytes.high, this.options.caption);
    this.acrossAxis(range.low, range.high, (x, step) => range.label(x, step));
    this.clipped((context) => {
      const large = this.small(context);
      this.large(context, large);
      this.lines(context);
    });
    this.options.after?.(this);
  }

  // Draws what is smaller than a pixel or two, and says what is larger.
  small(context) {
    const { set, page } = this;
    const [across, up] = this.scales();
    const [wide, high] = [Math.ceil(this.width), Math.ceil(this.height)];
    const sums = new Float32Array(wide * high * 4);
    const large = [];
    const { low } = this.range;
    const top = this.bytes.high;
    let any = false;
    for (let i = 0; i < set.count; i++) {
      const x0 = (set.left[i] - low) * across;
      const x1 = (set.right[i] - low) * across;
      const y0 = (top - set.bottom[i] - set.size[i]) * up;
      const y1 = (top - set.bottom[i]) * up;
      if (x1 < 0 || x0 > wide || y1 < 0 || y0 > high) continue;
      if (x1 - x0 >= 2 && y1 - y0 >= 2) {
        large.push(i);
        continue;
      }
      any = true;
      this.cover(sums, wide, high, [x0, x1, y0, y1], page.rgb[set.category[i]], page.faint(set, i) ? 0.12 : 1);
    }
    if (any) this.paint(context, sums, wide, high);
    return large;
  }

  cover(sums, wide, high, [x0, x1, y0, y1], [red, green, blue], weight) {
    const [first, last] = [Math.max(0, Math.floor(x0)), Math.min(wide - 1, Math.floor(x1))];
    const [upper, lower] = [Math.max(0, Math.floor(y0)), Math.min(high - 1, Math.floor(y1))];
    for (let y = upper; y <= lower; y++) {
      const part = Math.min(y1, y + 1) - Math.max(y0, y);
      if (part <= 0) continue;
      for (let x = first; x <= last; x++) {
        const share = (Math.min(x1, x + 1) - Math.max(x0, x)) * part * weight;
        if (share <= 0) continue;
        const to = (y * wide + x) * 4;
        sums[to] += red * share;
        sums[to + 1] += green * share;
        sums[to + 2] += blue * share;
        sums[to + 3] += share;
      }
    }
  }

  paint(context, sums, wide, high) {
    const image = new ImageData(wide, high);
    const pixels = image.data;
    for (let at = 0; at < sums.length; at += 4) {
      const all = sums[at + 3];
      if (all === 0) continue;
      pixels[at] = sums[at] / all;
      pixels[at + 1] = sums[at + 1] / all;
      pixels[at + 2] = sums[at + 2] / all;
      // The thinnest stay in sight: a tenth of a pixel is drawn as a quarter.
      pixels[at + 3] = 255 * Math.min(1, all) ** 0.6;
    }
    const layer = new OffscreenCanvas(wide, high);
    layer.getContext("2d").putImageData(image, 0, 0);
    context.drawImage(layer, 0, 0);
  }

  large(context, rows) {
    const { set, page } = this;
    const [across, up] = this.scales();
    const { low } = this.range;
    const top = this.bytes.high;
    rows.sort((a, b) => set.category[a] - set.category[b]);
    let last = -1;
    const texts = [];
    for (const i of rows) {
      const x0 = Math.max((set.left[i] - low) * across, -2);
      const x1 = Math.min((set.right[i] - low) * across, this.width + 2);
      const y0 = Math.max((top - set.bottom[i] - set.size[i]) * up, -2);
      const y1 = Math.min((top - set.bottom[i]) * up, this.height + 2);
      if (set.category[i] !== last) {
        last = set.category[i];
        context.fillStyle = page.colours[last];
      }
      context.globalAlpha = page.faint(set, i) ? 0.14 : 1;
      // A seam of paper between neighbours, where there is room for one.
      const seam = x1 - x0 > 5 && y1 - y0 > 5 ? 0.5 : 0;
      context.fillRect(x0 + seam, y0 + seam, x1 - x0 - 2 * seam, y1 - y0 - 2 * seam);
      if (x1 - x0 > 58 && y1 - y0 > 13) texts.push([i, x0, x1, y0, y1]);
    }
    this.texts(context, texts);
    context.globalAlpha = 1;
  }

  texts(context, rows) {
    const { set, page } = this;
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const [i, left, right, upper, lower] of rows) {
      const [x0, x1] = [Math.max(left, 0), Math.min(right, this.width)];
      const room = x1 - x0 - 10;
      if (room < 44) continue;
      context.globalAlpha = page.faint(set, i) ? 0.2 : 0.95;
      context.fillStyle = page.onColour[set.category[i]];
      const size = bytesText(set.size[i]);
      const site = page.siteText(set.site[i]);
      const both = site ? `${size}  ${site}` : size;
      const text = [both, size].find((each) => context.measureText(each).width <= room);
      const y = (Math.max(upper, 0) + Math.min(lower, this.height)) / 2;
      if (text) context.fillText(text, x0 + 5, y + 0.5);
    }
  }

  lines(context) {
    const { page, set } = this;
    const [across, up] = this.scales();
    const hovered = page.hovered;
    if (hovered?.set === set && hovered.box >= 0) {
      const i = hovered.box;
      const x0 = (set.left[i] - this.range.low) * across;
      const y0 = (this.bytes.high - set.bottom[i] - set.size[i]) * up;
      context.strokeStyle = INK.strong;
      context.lineWidth = 1.6;
      context.strokeRect(x0, y0, Math.max((set.right[i] - set.left[i]) * across, 2), Math.max(set.size[i] * up, 2));
    }
    for (const [x, colour, wide] of this.options.uprights?.() ?? []) {
      const at = (x - this.range.low) * across;
      context.fillStyle = colour;
      context.fillRect(at - wide / 2, 0, wide, this.height);
    }
    for (const [bytes, colour, text] of this.options.levels ?? []) {
      const y = Math.round((this.bytes.high - bytes) * up);
      context.fillStyle = colour;
      context.fillRect(0, Math.max(y, 0), this.width, 1.4);
      context.textAlign = "right";
      context.textBaseline = y < 16 ? "top" : "alphabetic";
      const [at, wide] = [y < 16 ? y + 4 : y - 4, context.measureText(text).width];
      context.globalAlpha = 0.82;
      context.fillStyle = INK.paper;
      context.fillRect(this.width - wide - 9, y < 16 ? at - 2 : at - 11, wide + 8, 15);
      context.globalAlpha = 1;
      context.fillStyle = colour;
      context.fillText(text, this.width - 5, at);
    }
  }
}
