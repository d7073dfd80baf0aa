// What was alive at the moment chosen: by category, by site, and the largest buffers.
class LiveSet {
  constructor(place, page) {
    this.place = place;
    this.page = page;
    this.by = "site";
    this.all = false;
  }

  // Bytes and count by (site, category) of the buffers shown one by one.
  gathered(tick) {
    const { page } = this;
    const { set } = page;
    const rows = new Map();
    const boxes = [];
    const listed = new Float64Array(page.categories.length);
    for (let i = 0; i < set.count && set.lower[i] <= tick; i++) {
      if (tick >= set.upper[i]) continue;
      const key = set.site[i] * 256 + set.category[i];
      const row = rows.get(key) ?? { site: set.site[i], category: set.category[i], bytes: 0, count: 0 };
      row.bytes += set.size[i];
      row.count++;
      rows.set(key, row);
      listed[set.category[i]] += set.size[i];
      boxes.push(i);
    }
    return { rows: [...rows.values()], boxes, listed };
  }

  refresh() {
    const { page } = this;
    const moment = page.moment;
    if (moment === null) return;
    const tick = page.moments[moment];
    const total = page.total[moment];
    const { rows, boxes, listed } = this.gathered(tick);
    const rest = page.categories.reduce((sum, _, c) => sum + Math.max(0, page.live[c][moment] - listed[c]), 0);
    this.place.replaceChildren(
      this.headline(moment, tick, total),
      this.bar(moment, total),
      this.legend(moment, total),
      this.choice(),
      this.by === "site" ? this.sites(rows, total, rest) : this.buffers(boxes, total, rest),
    );
  }

  headline(moment, tick, total) {
    const { page } = this;
    const step = lastUpTo(page.steps, tick) + 1;
    const facts = page.history
      ? [`event ${countText(tick + 1)}`, secondsText(page.times[moment])]
      : ["when the snapshot was taken"];
    if (page.steps.length) facts.push(`step ${step}`);
    const words = element("div", { class: "when" }, facts.join("  ·  "));
    const many = element("div", { class: "many" }, bytesText(total));
    if (page.history && moment === page.peakMoment) many.append(element("span", { class: "tag" }, "peak"));
    const part = page.peak && moment !== page.peakMoment ? `${shareText(total / page.peak)} of the peak` : "";
    return element("div", { class: "headline" }, many, words, element("div", { class: "when" }, part));
  }

  bar(moment, total) {
    const { page } = this;
    const bar = element("div", { class: "bar", role: "img", "aria-label": "live bytes by category" });
    for (const c of page.shown) {
      const bytes = page.live[c][moment];
      if (bytes > 0) bar.append(element("span", { colour: page.colours[c], width: `${(100 * bytes) / total}%`, title: `${page.categories[c]}: ${bytesText(bytes)}` }));
    }
    return bar;
  }

  legend(moment, total) {
    const { page } = this;
    const list = element("div", { class: "categories" });
    for (const c of page.shown) {
      const bytes = page.live[c][moment];
      if (bytes <= 0) continue;
      list.append(
        element("i", { colour: page.colours[c] }),
        element("span", {}, page.categories[c]),
        element("b", {}, bytesText(bytes)),
        element("em", {}, shareText(bytes / total)),
      );
    }
    return list;
  }

  choice() {
    const button = (by, text) => element("button", {
      "aria-pressed": String(this.by === by),
      onclick: () => { this.by = by; this.refresh(); },
    }, text);
    return element("div", { class: "choice" }, button("site", "Sites"), button("buffer", "Largest buffers"));
  }

  sites(rows, total, rest) {
    const { page } = this;
    rows.sort((a, b) => b.bytes - a.bytes);
    const most = rows[0]?.bytes || 1;
    const list = element("div", { class: "sites" });
    const some = this.all ? rows.slice(0, 500) : rows.slice(0, 14);
    for (const row of some) {
      const chosen = page.site === row.site;
      list.append(element("button", {
        class: "site", "aria-pressed": String(chosen), title: page.siteFull(row.site),
        onclick: () => page.chooseSite(chosen ? null : row.site),
      },
        element("span", { class: "name" }, page.siteText(row.site) || "site not recorded"),
        element("span", { class: "where" }, page.siteWhere(row.site)),
        element("b", {}, bytesText(row.bytes)),
        element("em", {}, `${shareText(row.bytes / total)} · ${counted(row.count, "buffer")}`),
        element("span", { class: "track" }, element("span", { colour: page.colours[row.category], width: `${(100 * row.bytes) / most}%` })),
      ));
    }
    this.ending(list, rows.length - some.length, rest);
    return list;
  }

  buffers(boxes, total, rest) {
    const { page } = this;
    const { set } = page;
    boxes.sort((a, b) => set.size[b] - set.size[a]);
    const most = boxes.length ? set.size[boxes[0]] : 1;
    const list = element("div", { class: "sites" });
    for (const i of boxes.slice(0, this.all ? 300 : 14)) {
      list.append(element("button", { class: "site", title: page.siteFull(set.site[i]), onclick: () => page.show(i) },
        element("span", { class: "name" }, bytesText(set.size[i])),
        element("span", { class: "where" }, page.siteText(set.site[i]) || page.categories[set.category[i]]),
        element("b", {}, shareText(set.size[i] / total)),
        element("em", {}, page.lifeText(set, i)),
        element("span", { class: "track" }, element("span", { colour: page.colours[set.category[i]], width: `${(100 * set.size[i]) / most}%` })),
      ));
    }
    this.ending(list, boxes.length - Math.min(boxes.length, this.all ? 300 : 14), rest);
    return list;
  }

  ending(list, left, rest) {
    if (rest > 0) {
      list.append(element("p", { class: "aside" }, `and ${bytesText(rest)} in buffers too small to be listed one by one`));
    }
    if (left > 0 && !this.all) {
      list.append(element("button", { class: "more", onclick: () => { this.all = true; this.refresh(); } }, `${countText(left)} more`));
    } else if (left > 0) {
      list.append(element("p", { class: "aside" }, `and ${countText(left)} more`));
    }
  }
}
