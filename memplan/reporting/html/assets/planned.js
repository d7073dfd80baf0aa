// A plan's placements: each buffer where the plan puts it, and where it lay before.
function planTabs(page, charts) {
  const { plan, columns } = page;
  const shown = { before: null, after: null };
  const sets = plan.placements.map((placed, k) => {
    const column = (name) => columns[`plan${k}_${name}`];
    const base = {
      count: column("left").length, lower: column("left"), upper: column("right"), left: column("left"), right: column("right"),
      size: column("size"), category: column("category"), site: column("site"),
      life: (i) => `ticks ${countText(column("left")[i])} to ${countText(column("right")[i])} of ${countText(placed.length)}`,
    };
    const after = { ...base, bottom: column("bottom"), place: (i) => `offset ${countText(column("bottom")[i])} in the ${plan.room}` };
    const before = placed.before_top ? { ...base, bottom: column("before"), place: (i) => `${bytesText(column("before")[i])} up the addresses used` } : null;
    return { placed, before, after };
  });
  const chartOf = (id, set, placed, top, levels, caption) => {
    const canvas = byId(id).cloneNode(true);
    byId(id).replaceWith(canvas);
    const range = shown.range;
    const bytes = new ByteRange(top, () => chart.refresh());
    const chart = new Boxes(canvas, page, set, range, bytes, { levels, caption });
    charts.push(chart);
    return chart;
  };
  const show = (k) => {
    const { placed, before, after } = sets[k];
    for (const chart of Object.values(shown)) if (charts.includes(chart)) charts.splice(charts.indexOf(chart), 1);
    shown.range = new Range(placed.length, [0], [0]);
    const top = Math.max(placed.peak, placed.before_top, placed.bound) * 1.05;
    const afterLevels = [[placed.peak, INK.strong, `peak ${bytesText(placed.peak)}`]];
    if (placed.bound && placed.bound < placed.peak) afterLevels.push([placed.bound, INK.peak, `lower bound ${bytesText(placed.bound)}`]);
    byId("plan-charts").classList.toggle("single", !before);
    byId("before").parentElement.hidden = !before;
    shown.before = before ? chartOf("before", before, placed, top, [[placed.before_top, INK.oom, `spread over ${bytesText(placed.before_top)}`]], "addresses, gaps closed") : null;
    shown.after = chartOf("after", after, placed, top, afterLevels, `offset in the ${plan.room}`);
    byId("after").previousElementSibling.hidden = !before;
    return placed.note;
  };
  return { names: sets.map(({ placed }) => `Planned: ${placed.name}`), show };
}
