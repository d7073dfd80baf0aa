// The stacks of what is alive at the moment chosen: outermost call on top, as wide as
// the bytes that were asked for beneath it. A click makes a call as wide as the page.
const ROW = 19;

class Flame {
  constructor(canvas, page) {
    this.canvas = canvas;
    this.page = page;
    this.context = canvas.getContext("2d");
    this.root = 0;
    this.cells = [];
    this.children = page.nodeParent.length ? this.childrenOf(page.nodeParent) : [];
    canvas.addEventListener("pointermove", (event) => {
      const cell = this.under(event);
      page.hover(cell ? { node: cell.node, bytes: this.bytes[cell.node], from: this } : null, event);
      canvas.style.cursor = cell ? "pointer" : "default";
    });
    canvas.addEventListener("pointerleave", () => page.hover(null));
    canvas.addEventListener("click", (event) => {
      const cell = this.under(event);
      if (!cell) return;
      this.root = cell.node === this.root ? page.nodeParent[cell.node] : cell.node;
      this.refresh();
    });
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
  }

  childrenOf(parent) {
    const found = Array.from(parent, () => null);
    for (let i = 1; i < parent.length; i++) (found[parent[i]] ??= []).push(i);
    return found;
  }

  // A parent comes before its children, so one pass backwards adds all up.
  refresh() {
    const { page } = this;
    const { set } = page;
    if (page.moment === null || !page.nodeParent.length) return;
    const tick = page.moments[page.moment];
    this.bytes = new Float64Array(page.nodeParent.length);
    for (let i = 0; i < set.count && set.lower[i] <= tick; i++) {
      if (tick < set.upper[i]) this.bytes[set.node[i]] += set.size[i];
    }
    for (let i = this.bytes.length - 1; i > 0; i--) this.bytes[page.nodeParent[i]] += this.bytes[i];
    while (this.root && !this.bytes[this.root]) this.root = page.nodeParent[this.root];
    this.draw();
  }

  // Cells from the root on; what is narrower than half a pixel is left out.
  laidOut(wide) {
    const cells = [];
    const path = [];
    for (let at = this.root; at; at = this.page.nodeParent[at]) path.unshift(at);
    cells.push({ node: 0, x: 0, width: wide, depth: 0, path: true });
    path.forEach((node, i) => cells.push({ node, x: 0, width: wide, depth: i + 1, path: node !== this.root }));
    if (this.root === 0) cells[0].path = false;
    const scale = this.bytes[this.root] ? wide / this.bytes[this.root] : 0;
    const open = [[this.root, 0, path.length]];
    while (open.length) {
      const [node, left, depth] = open.pop();
      let x = left;
      const inner = (this.children[node] ?? []).filter((i) => this.bytes[i] * scale > 0.5);
      inner.sort((a, b) => this.bytes[b] - this.bytes[a]);
      for (const child of inner) {
        const width = this.bytes[child] * scale;
        cells.push({ node: child, x, width, depth: depth + 1, path: false });
        open.push([child, x, depth + 1]);
        x += width;
      }
    }
    return cells;
  }

  draw() {
    if (!this.bytes) return;
    const { canvas, context } = this;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const wide = canvas.parentElement.clientWidth;
    this.cells = this.laidOut(wide);
    const deep = this.cells.reduce((most, cell) => Math.max(most, cell.depth), 0) + 1;
    const high = deep * ROW;
    canvas.style.height = `${high}px`;
    [canvas.width, canvas.height] = [Math.round(wide * ratio), Math.round(high * ratio)];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "11px " + INK.font;
    context.textBaseline = "middle";
    for (const cell of this.cells) this.cell(context, cell);
  }

  cell(context, { node, x, width, depth, path }) {
    const { page } = this;
    context.globalAlpha = path ? 0.45 : 1;
    context.fillStyle = node === 0 ? INK.flameRoot : page.nodeColour(node);
    context.fillRect(x, depth * ROW, Math.max(width - 1, 0.5), ROW - 1);
    if (width > 34) {
      const text = clippedText(context, `${page.nodeText(node)}   ${bytesText(this.bytes[node])}`, width - 9);
      context.fillStyle = node === 0 ? INK.text : INK.onFlame;
      context.fillText(text, x + 5, depth * ROW + ROW / 2);
    }
    context.globalAlpha = 1;
  }

  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const depth = Math.floor(y / ROW);
    return this.cells.find((cell) => cell.depth === depth && x >= cell.x && x < cell.x + cell.width);
  }
}

function clippedText(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(text.slice(0, middle) + "…").width <= room) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? text.slice(0, low) + "…" : "";
}
