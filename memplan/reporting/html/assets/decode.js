// Columns of numbers out of one compressed text: see columns.py.
const WIDTHS = { u1: 1, u4: 4, f8: 8 };
const ARRAYS = { u1: Uint8Array, u4: Uint32Array, f8: Float64Array };

async function unpacked(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream();
  const whole = stream.pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(whole).arrayBuffer());
}

function columnsOf(listed, bytes) {
  const found = {};
  let at = 0;
  for (const { name, kind, count, delta } of listed) {
    const width = WIDTHS[kind];
    const rows = new Uint8Array(count * width);
    for (let plane = 0; plane < width; plane++) {
      for (let i = 0, to = plane; i < count; i++, to += width) rows[to] = bytes[at + i];
      at += count;
    }
    const values = new ARRAYS[kind](rows.buffer);
    if (delta) for (let i = 1; i < count; i++) values[i] += values[i - 1];
    found[name] = values;
  }
  return found;
}

// The last index whose value is at most x, or -1; values ascend.
function lastUpTo(values, x, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
