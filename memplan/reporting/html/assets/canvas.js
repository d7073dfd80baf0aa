// A canvas with an axis across and bytes up, sharp on every screen.
const MARGIN = { left: 74, right: 14, top: 20, bottom: 24 };

class Chart {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.wanted = false;
    this.draw = () => {};
    new ResizeObserver(() => this.refresh()).observe(canvas);
  }

  // Drawn once before the next frame, however often it is asked for.
  refresh() {
    if (this.wanted) return;
    this.wanted = true;
    requestAnimationFrame(() => {
      this.wanted = false;
      this.fit();
      this.draw();
    });
  }

  fit() {
    const { clientWidth, clientHeight } = this.canvas;
    this.ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.width = Math.max(clientWidth - MARGIN.left - MARGIN.right, 1);
    this.height = Math.max(clientHeight - MARGIN.top - MARGIN.bottom, 1);
    const [across, up] = [clientWidth * this.ratio, clientHeight * this.ratio].map(Math.round);
    if (this.canvas.width !== across || this.canvas.height !== up) {
      this.canvas.width = across;
      this.canvas.height = up;
    }
    this.context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    this.context.clearRect(0, 0, clientWidth, clientHeight);
    this.context.font = "11px " + INK.font;
  }

  inside(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left - MARGIN.left;
    const y = event.clientY - box.top - MARGIN.top;
    return { x, y, within: x >= 0 && x <= this.width && y >= 0 && y <= this.height };
  }

  clipped(work) {
    const context = this.context;
    context.save();
    context.translate(MARGIN.left, MARGIN.top);
    context.beginPath();
    context.rect(0, 0, this.width, this.height);
    context.clip();
    work(context);
    context.restore();
  }

  bytesAxis(low, high, caption) {
    const { context } = this;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const ticks = roundTicks(low, high, Math.max(2, this.height / 44), true);
    for (const tick of ticks) {
      const y = MARGIN.top + this.height * (1 - (tick - low) / (high - low));
      context.fillStyle = INK.grid;
      context.fillRect(MARGIN.left, Math.round(y), this.width, 1);
      context.fillStyle = INK.muted;
      context.fillText(tick === 0 ? "0" : axisBytes(tick), MARGIN.left - 8, y);
    }
    if (caption) {
      context.save();
      context.translate(11, MARGIN.top + this.height / 2);
      context.rotate(-Math.PI / 2);
      context.textAlign = "center";
      context.fillStyle = INK.faint;
      context.fillText(caption, 0, 0);
      context.restore();
    }
  }

  acrossAxis(low, high, label) {
    const { context } = this;
    const ticks = roundTicks(low, high, Math.max(2, this.width / 110));
    const step = ticks.length > 1 ? ticks[1] - ticks[0] : high - low;
    context.textBaseline = "top";
    context.textAlign = "center";
    for (const tick of ticks) {
      const x = MARGIN.left + (this.width * (tick - low)) / (high - low);
      context.fillStyle = INK.axis;
      context.fillRect(Math.round(x), MARGIN.top + this.height, 1, 4);
      context.fillStyle = INK.muted;
      const text = label(tick, step);
      const half = context.measureText(text).width / 2;
      const most = MARGIN.left + this.width + MARGIN.right - half - 1;
      context.fillText(text, Math.min(x, most), MARGIN.top + this.height + 7);
    }
    context.fillStyle = INK.axis;
    context.fillRect(MARGIN.left, MARGIN.top + this.height, this.width, 1);
  }
}

function axisBytes(count) {
  let unit = 0;
  while (count >= 1024 && unit < IEC.length - 1) {
    count /= 1024;
    unit++;
  }
  return `${+count.toFixed(2)} ${IEC[unit]}`;
}

// Wheel, drag and double click: what they do to a range, and to bytes if there are any.
function navigable(chart, range, bytes) {
  const { canvas } = chart;
  const span = () => range.high - range.low;
  canvas.addEventListener("wheel", (event) => {
    const { x, y, within } = chart.inside(event);
    if (!within) return;
    event.preventDefault();
    const factor = Math.exp(Math.max(-1, Math.min(1, event.deltaY / 240)));
    if (event.shiftKey && bytes) {
      const amount = event.deltaY || event.deltaX;
      bytes.zoom(Math.exp(Math.max(-1, Math.min(1, amount / 240))), 1 - y / chart.height);
      return;
    }
    if (event.deltaX) range.pan((event.deltaX / chart.width) * span());
    if (event.deltaY) range.zoom(factor, range.low + (x / chart.width) * span());
  }, { passive: false });
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !chart.inside(event).within) return;
    held = { x: event.clientX, y: event.clientY, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!held) return;
    const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
    if (!held.moved && Math.hypot(dx, dy) < 4) return;
    held.moved = true;
    canvas.classList.add("held");
    range.pan((-dx / chart.width) * span());
    if (bytes) bytes.pan(dy / chart.height);
    [held.x, held.y] = [event.clientX, event.clientY];
  });
  canvas.addEventListener("pointerup", (event) => {
    if (held && !held.moved) chart.clicked?.(chart.inside(event));
    held = null;
    canvas.classList.remove("held");
  });
  canvas.addEventListener("pointercancel", () => { held = null; });
  canvas.addEventListener("dblclick", () => {
    bytes?.reset();
    range.reset();
  });
}

// The stretch of bytes that a packing shows.
class ByteRange {
  constructor(top, changed) {
    this.top = Math.max(top, 1);
    this.changed = changed;
    [this.low, this.high] = [0, this.top];
  }

  reset() {
    this.set(0, this.top);
  }

  set(low, high) {
    const span = Math.min(Math.max(high - low, Math.min(64, this.top)), this.top);
    this.low = Math.min(Math.max(low, 0), this.top - span);
    this.high = this.low + span;
    this.changed();
  }

  zoom(factor, part) {
    const at = this.low + part * (this.high - this.low);
    this.set(at - (at - this.low) * factor, at + (this.high - at) * factor);
  }

  pan(part) {
    const by = part * (this.high - this.low);
    this.set(this.low + by, this.high + by);
  }
}
