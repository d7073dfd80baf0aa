// All that the page knows, and who is told when something is chosen.
const INK = {};

function readInk() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "text", "muted", "faint", "grid", "chosen", "peak", "oom", "strong", "line"]) {
    INK[name] = style.getPropertyValue(`--${name}`).trim();
  }
  INK.font = 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  INK.axis = INK.faint;
  INK.step = dark ? "rgba(255,255,255,.28)" : "rgba(0,0,0,.24)";
  INK.hover = dark ? "rgba(255,255,255,.5)" : "rgba(0,0,0,.4)";
  INK.flameRoot = INK.line;
  INK.onFlame = "#1d2126";
}

function rgbOf(colour) {
  const number = parseInt(colour.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

class Page {
  constructor(scene, columns) {
    Object.assign(this, {
      ticks: scene.ticks, peak: scene.peak, ooms: scene.ooms, sites: scene.sites, labels: scene.labels,
      history: scene.history, plan: scene.plan, addressTop: scene.address_top, traced: scene.traced,
    });
    this.categories = scene.categories.map(({ name }) => name);
    // The last is of a plan's buffers that are none of the trace's, and of no category.
    this.colours = [...scene.categories.map(({ colour }) => colour), scene.nobodys];
    this.rgb = this.colours.map(rgbOf);
    this.onColour = this.rgb.map(([r, g, b]) => (r * 0.299 + g * 0.587 + b * 0.114 > 140 ? "#15181c" : "#ffffff"));
    this.hidden = new Set();
    this.moments = columns.moment;
    this.times = columns.seconds;
    this.live = this.categories.map((_, c) => columns[`live${c}`]);
    this.steps = columns.steps;
    this.nodeParent = columns.node_parent;
    this.nodeLabel = columns.node_label;
    this.set = {
      count: columns.lower.length, lower: columns.lower, upper: columns.upper, left: columns.lower, right: columns.upper,
      bottom: columns.address, size: columns.size, category: columns.category, site: columns.site, node: columns.node,
    };
    this.columns = columns;
    this.range = new Range(this.ticks, this.moments, this.times, this.history);
    [this.moment, this.site, this.hovered] = [null, null, null];
    this.onChoice = [];
    this.onHover = [];
    this.onColours = [];
    this.sum();
    this.peakMoment = Math.max(0, lastUpTo(this.moments, scene.peak_tick));
  }

  // Categories shown, and their sum at every moment.
  sum() {
    this.shown = this.categories.map((_, c) => c).filter((c) => !this.hidden.has(c));
    this.total = new Float64Array(this.moments.length);
    for (const c of this.shown) for (let i = 0; i < this.total.length; i++) this.total[i] += this.live[c][i];
  }

  hide(category, hidden) {
    this.hidden[hidden ? "add" : "delete"](category);
    this.sum();
    for (const listener of this.onColours) listener();
    this.choose(this.moment ?? this.peakMoment);
  }

  choose(moment) {
    this.moment = moment;
    for (const listener of this.onChoice) listener();
  }

  chooseSite(site) {
    this.site = site;
    for (const listener of this.onChoice) listener();
  }

  hover(what, event) {
    if (!what && !this.hovered) return;
    this.hovered = what;
    for (const listener of this.onHover) listener(what, event);
  }

  // Whether a box stands back: another site is chosen, or its category is hidden.
  faint(set, i) {
    if (this.hidden.size && this.hidden.has(set.category[i])) return true;
    return this.site !== null && set.site[i] !== this.site;
  }

  // A buffer in view, with some of the run around it.
  show(i) {
    const { set, range } = this;
    const [low, high] = [range.at(set.lower[i]), range.at(set.upper[i])];
    const room = Math.max((high - low) * 0.25, (range.whole[1] - range.whole[0]) * 1e-4);
    range.set(low - room, high + room);
    this.hover({ box: i, set, from: this }, { clientX: 0, clientY: 0 });
  }

  siteText(index) {
    const [file, line, called, module, operator] = this.sites[index] ?? [];
    if (module) return operator ? `${module} · ${operator}` : module;
    if (file) return `${baseName(file)}:${line}` + (called ? ` ${called}` : "");
    return operator || "";
  }

  siteWhere(index) {
    const [file, line, called, module, operator] = this.sites[index] ?? [];
    if (module && file) return `${baseName(file)}:${line}` + (called ? ` ${called}` : "");
    return file ? operator || "" : "";
  }

  siteFull(index) {
    const [file, line, called, module, operator] = this.sites[index] ?? [];
    const rows = [];
    if (module) rows.push(module);
    if (operator) rows.push(operator);
    if (file) rows.push(`${file}:${line}` + (called ? `, in ${called}` : ""));
    return rows.join("\n");
  }

  lifeText(set, i) {
    if (set.life) return set.life(i);
    if (!this.history) return "live";
    const { range } = this;
    const open = set.upper[i] >= this.ticks;
    const seconds = this.times[range.momentOfTick(set.upper[i])] - this.times[range.momentOfTick(set.lower[i])];
    const life = `events ${countText(set.lower[i] + 1)} to ${open ? "the end" : countText(set.upper[i] + 1)}`;
    return `${life}, ${secondsText(Math.max(0, seconds))}${open ? ", never freed" : ""}`;
  }

  nodeText(node) {
    const [file, line, name] = this.labels[this.nodeLabel[node]];
    return file ? `${name || "?"}  ${baseName(file)}:${line}` : name;
  }

  nodeFull(node) {
    const [file, line, name] = this.labels[this.nodeLabel[node]];
    return file ? `${name || "?"}\n${file}:${line}` : name;
  }

  // A hue of its own for every file.
  nodeColour(node) {
    const [file, , name] = this.labels[this.nodeLabel[node]];
    let hash = 7;
    for (const c of file || name) hash = (hash * 31 + c.codePointAt(0)) % 997;
    return `hsl(${18 + (hash % 200)} ${44 + (hash % 3) * 8}% ${70 + (hash % 5) * 2}%)`;
  }
}
