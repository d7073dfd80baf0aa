// What is under the pointer, in words.
class Tooltip {
  constructor(place, page) {
    this.place = place;
    this.page = page;
  }

  refresh(hovered, event) {
    const rows = hovered ? this.rows(hovered) : null;
    this.place.hidden = !rows;
    if (!rows) return;
    this.place.replaceChildren(...rows);
    const { clientWidth, clientHeight } = document.documentElement;
    const { offsetWidth, offsetHeight } = this.place;
    const x = event.clientX + 16 + offsetWidth > clientWidth ? event.clientX - offsetWidth - 12 : event.clientX + 16;
    const y = Math.min(event.clientY + 14, clientHeight - offsetHeight - 8);
    this.place.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
  }

  rows(hovered) {
    if (hovered.box >= 0) return this.box(hovered.set, hovered.box);
    if (hovered.node !== undefined) return this.node(hovered);
    if (hovered.moment !== undefined && hovered.from === this.page.timeline) return this.moment(hovered.moment);
    return null;
  }

  box(set, i) {
    const { page } = this;
    const where = page.siteFull(set.site[i]);
    const rows = [
      this.head(page.colours[set.category[i]], bytesText(set.size[i]), page.categories[set.category[i]] ?? ""),
      element("div", {}, page.lifeText(set, i)),
    ];
    if (where) rows.push(element("div", { class: "code" }, where));
    if (set.place) rows.push(element("div", { class: "quiet" }, set.place(i)));
    return rows;
  }

  node({ node, bytes }) {
    const { page } = this;
    const part = page.total[page.moment] ? bytes / page.total[page.moment] : 0;
    return [
      this.head(node ? page.nodeColour(node) : INK.flameRoot, bytesText(bytes), shareText(part)),
      element("div", { class: "code" }, page.nodeFull(node)),
    ];
  }

  moment(moment) {
    const { page } = this;
    const rows = [this.head(null, bytesText(page.total[moment]), page.history ? `event ${countText(page.moments[moment] + 1)}, ${secondsText(page.times[moment])}` : "")];
    for (const c of page.shown) {
      const bytes = page.live[c][moment];
      if (bytes > 0) rows.push(element("div", { class: "pair" }, element("i", { colour: page.colours[c] }), element("span", {}, page.categories[c]), element("b", {}, bytesText(bytes))));
    }
    return rows;
  }

  head(colour, strong, quiet) {
    const row = element("div", { class: "head" });
    if (colour) row.append(element("i", { colour }));
    row.append(element("b", {}, strong), element("span", { class: "quiet" }, quiet));
    return row;
  }
}
