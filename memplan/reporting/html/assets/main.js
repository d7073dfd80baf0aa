// The page, put together.
const byId = (id) => document.getElementById(id);

async function start() {
  readInk();
  const scene = JSON.parse(byId("scene").textContent);
  const columns = columnsOf(scene.columns, await unpacked(byId("columns").textContent.trim()));
  const page = new Page(scene, columns);
  const bytes = new ByteRange(page.addressTop * 1.02, () => run.refresh());
  page.timeline = new Timeline(byId("timeline"), page);
  const run = new Boxes(byId("packing"), page, page.set, page.range, bytes, {
    caption: "addresses, gaps closed",
    clicked: (box, { x }) => page.choose(page.timeline.momentUnder(x)),
    at: (x) => ({ moment: page.range.momentAt(x) }),
    uprights: () => {
      const found = [];
      if (page.moment !== null) found.push([page.range.at(page.moments[page.moment]), INK.chosen, 2]);
      if (page.hovered?.moment !== undefined) found.push([page.range.at(page.moments[page.hovered.moment]), INK.hover, 1]);
      return found;
    },
  });
  page.set.place = (i) => `${bytesText(page.set.bottom[i])} up the addresses used`;
  const charts = [page.timeline, run];
  const planned = page.plan ? planTabs(page, charts) : null;
  tabs(page, planned);
  controls(page);
  legend(page);
  const alive = new LiveSet(byId("alive"), page);
  const flame = new Flame(byId("flame"), page);
  const tooltip = new Tooltip(byId("tooltip"), page);
  page.onChoice.push(() => {
    alive.refresh();
    flame.refresh();
    byId("flame-when").textContent = flameWords(page);
    for (const chart of charts) chart.refresh();
  });
  page.onColours.push(() => legend(page));
  page.onHover.push((hovered, event) => {
    tooltip.refresh(hovered, event);
    for (const chart of charts) chart.refresh();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readInk();
    page.choose(page.moment);
  });
  page.choose(page.peakMoment);
  document.documentElement.dataset.ready = "yes";
  performance.mark("memplan-ready");
  window.memplanReport = page; // for tests, and for the curious
}

function flameWords(page) {
  if (!page.history) return "of what was live when the snapshot was taken";
  const at = page.moment === page.peakMoment ? "the peak" : `event ${countText(page.moments[page.moment] + 1)}`;
  return `of what was alive at ${at}`;
}

function controls(page) {
  const { range } = page;
  const middle = () => (page.moment === null ? (range.low + range.high) / 2 : range.at(page.moments[page.moment]));
  const inView = (x) => (x >= range.low && x <= range.high ? x : (range.low + range.high) / 2);
  const unit = (inSeconds) => {
    range.toggle(inSeconds);
    byId("by-events").setAttribute("aria-pressed", String(!inSeconds));
    byId("by-seconds").setAttribute("aria-pressed", String(inSeconds));
    const { set } = page;
    const placed = (ticks) => (inSeconds ? Float64Array.from(ticks, (tick) => range.at(tick)) : ticks);
    [set.left, set.right] = [placed(set.lower), placed(set.upper)];
    range.changed();
  };
  byId("by-events").onclick = () => unit(false);
  byId("by-seconds").onclick = () => unit(true);
  byId("to-peak").onclick = () => page.choose(page.peakMoment);
  byId("zoom-in").onclick = () => range.zoom(0.5, inView(middle()));
  byId("zoom-out").onclick = () => range.zoom(2, inView(middle()));
  byId("whole").onclick = () => range.reset();
  for (const id of ["timeline", "packing"]) {
    byId(id).addEventListener("keydown", (event) => {
      const last = page.moments.length - 1;
      const actions = {
        ArrowLeft: () => page.choose(Math.max(0, (page.moment ?? 0) - (event.shiftKey ? 20 : 1))),
        ArrowRight: () => page.choose(Math.min(last, (page.moment ?? 0) + (event.shiftKey ? 20 : 1))),
        "+": () => range.zoom(0.5, inView(middle())),
        "-": () => range.zoom(2, inView(middle())),
        0: () => range.reset(),
        p: () => page.choose(page.peakMoment),
      };
      if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      actions[event.key]();
    });
  }
}

function legend(page) {
  byId("legend").replaceChildren(...page.categories.map((name, c) =>
    element("button", {
      "aria-pressed": String(!page.hidden.has(c)), title: "show or hide",
      onclick: () => page.hide(c, !page.hidden.has(c)),
    }, element("i", { colour: page.colours[c] }), name)));
}

function tabs(page, planned) {
  const names = [page.history ? "As it ran: every buffer at its address" : "Every buffer at its address", ...(planned?.names ?? [])];
  let buttons = [];
  const show = (chosen) => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === chosen)));
    byId("packing").hidden = chosen > 0;
    byId("packing").style.display = chosen > 0 ? "none" : "";
    byId("plan-charts").hidden = chosen === 0;
    byId("packing-note").textContent = chosen ? planned.show(chosen - 1) : page.traced;
  };
  buttons = names.map((name, i) => element("button", { "aria-pressed": "false", onclick: () => show(i) }, name));
  if (names.length > 1) byId("tabs").append(...buttons);
  else byId("tabs").append(element("span", {}, names[0]));
  show(0);
}

start().catch((error) => {
  const place = byId("failure");
  place.hidden = false;
  place.textContent = typeof DecompressionStream === "undefined"
    ? "This browser is too old for the page: it needs DecompressionStream (2023 or later)."
    : `The page could not be drawn: ${error.message}`;
  throw error;
});
