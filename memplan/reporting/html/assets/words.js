// Numbers as people read them, and elements of the page. Text is set, never parsed.
const IEC = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function bytesText(count) {
  let value = count;
  let unit = 0;
  while (Math.abs(value) >= 1023.95 && unit < IEC.length - 1) {
    value /= 1024;
    unit++;
  }
  return unit ? `${value.toFixed(1)} ${IEC[unit]}` : `${Math.round(value)} B`;
}

function secondsText(seconds) {
  for (const [limit, scale, unit] of [[1, 1, "s"], [1e-3, 1e3, "ms"], [0, 1e6, "µs"]]) {
    if (Math.abs(seconds) >= limit) {
      const value = seconds * scale;
      return `${Math.abs(value) >= 100 ? value.toFixed(0) : Number(value.toPrecision(3))} ${unit}`;
    }
  }
  return "";
}

const countText = (n) => Math.round(n).toLocaleString("en-US");
const counted = (n, noun) => `${countText(n)} ${noun}${n === 1 ? "" : "s"}`;
const shareText = (part) => (part > 0 && part < 0.001 ? "< 0.1 %" : `${(part * 100).toFixed(1)} %`);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "colour") made.style.background = value;
    else if (name === "width") made.style.width = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// The shortest name of a file that still tells which it is.
const baseName = (file) => file.slice(file.lastIndexOf("/") + 1);

// Ticks from low to high, round in powers of two for bytes, of ten otherwise.
function roundTicks(low, high, most, binary = false) {
  const span = Math.max(high - low, 1e-12);
  let step = binary ? 2 ** Math.ceil(Math.log2(span / most)) : 10 ** Math.floor(Math.log10(span / most));
  if (!binary) for (const k of [1, 2, 5, 10]) if (span / (step * k) <= most) { step *= k; break; }
  if (binary) step = Math.max(step, 1);
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) ticks.push(at);
  return ticks;
}
