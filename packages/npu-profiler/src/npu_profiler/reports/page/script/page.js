// The visible part of the page, and its changes.

class Page {
  constructor(trace) {
    this.trace = trace;
    this.lanes = makeLanes(trace);
    this.launches = trace.flows.filter((flow) => flow.isLaunch);
    this.launchTimes = Float64Array.from(this.launches, (flow) => flow.source.time);
    this.marksOf = new Map();
    for (const mark of trace.marks) {
      if (!this.marksOf.has(mark.row)) this.marksOf.set(mark.row, []);
      this.marksOf.get(mark.row).push(mark);
    }
    for (const marks of this.marksOf.values()) marks.sort((one, other) => one.time - other.time);
    this.picked = this.range = this.matches = null;
    this.chain = [];
    this.arrows = { causes: [], effects: [] };
    this.rows = [];
    const first = firstOp(trace);
    const margin = (trace.end - first) * .02;
    this.view = { from: first - margin, to: trace.end + margin };
    this.drawing = new Drawing(byId("canvas"), this);
    this.drawing.readStyle();
    this.isDue = false;
  }
  get scrolled() { return byId("scroll").scrollTop; }

  resize() {
    const scroll = byId("scroll");
    this.drawing.resize(scroll.clientWidth, scroll.clientHeight);
    this.setHeight();
    this.drawing.draw();
  }
  setHeight() {
    byId("space").style.height = `${placeLanes(this.lanes, this.drawing.height, 0).needed}px`;
    // As high as its content, within the bounds of the style.
    byId("scroll").style.height = `${this.lanes.reduce((all, lane) => all + lane.height, RULER) + GAP}px`;
  }
  redraw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => { this.isDue = false; this.drawing.draw(); });
  }

  show(from, to) {
    const whole = this.trace.end, size = Math.min(Math.max(to - from, 20), whole * 1.1);
    const start = Math.min(Math.max(from, -whole * .05), whole * 1.05 - size);
    this.view = { from: start, to: start + size };
    this.redraw();
  }
  showAll() { this.show(-this.trace.end * .01, this.trace.end * 1.01); }
  zoom(factor, at) {
    const { from, to } = this.view;
    this.show(at - (at - from) * factor, at + (to - at) * factor);
  }
  pan(share) {
    const { from, to } = this.view;
    this.show(from + (to - from) * share, to + (to - from) * share);
  }
  fit() {
    const found = this.picked ? { from: this.picked.level.starts[this.picked.at], to: this.picked.level.ends[this.picked.at] } : this.range;
    if (!found) return this.showAll();
    const margin = Math.max((found.to - found.from) * .1, 10);
    this.show(found.from - margin, found.to + margin);
  }

  pick(slice) {
    this.picked = slice;
    this.chain = slice ? chainOf(slice) : [];
    this.arrows = slice ? arrowsOf(this.trace, slice) : { causes: [], effects: [] };
    if (slice) showSlice(this.trace, slice, this.arrows, (other) => this.goTo(other));
    this.redraw();
  }
  // Scrolls and pans to the selection; zooms only if it is too thin or wider than the screen.
  bringIntoView() {
    const { row, level, depth, at } = this.picked, { from, to } = this.view, start = level.starts[at], size = level.ends[at] - start;
    byId("scroll").scrollTop = scrollTo(this.lanes, this.drawing.height, this.scrolled, row, depth);
    const share = size / (to - from);
    if (share < .01 || share > 1) this.show(start - Math.max(size, 10) * 4, start + Math.max(size, 10) * 5);
    else if (start < from || start + size > to) this.show(start - (to - from) / 3, start + (to - from) * 2 / 3);
    this.redraw();
  }
  goTo(slice) {
    if (!slice || slice.at < 0 || slice.at >= slice.level.starts.length) return;
    this.pick(slice);
    this.bringIntoView();
  }
  // The slice before or after at the same depth; without a selection, the first visible one.
  step(direction) {
    if (this.picked) return this.goTo({ ...this.picked, at: this.picked.at + direction });
    const { row } = this.lanes.find((lane) => lane.row) || {}, level = row && row.levels[0];
    if (level) this.goTo({ row, level, depth: 0, at: firstAbove(level.ends, this.view.from) });
  }
  // The slice around the selection, or the first within it.
  climb(direction) {
    if (direction < 0) return this.goTo(this.chain[this.chain.length - 2]);
    const { row, level, depth, at } = this.picked, inner = row.levels[depth + 1];
    if (!inner) return;
    const first = firstAbove(inner.ends, level.starts[at]);
    if (inner.starts[first] < level.ends[at]) this.goTo({ row, level: inner, depth: depth + 1, at: first });
  }

  search(query) {
    this.matches = query ? findMatches(this.trace, query) : null;
    byId("found").textContent = query ? `${formatCount(this.matches.count)} found` : "";
    this.redraw();
  }
  jump(direction) {
    if (!this.matches || !this.matches.count) return;
    this.goTo(nextMatch(this.trace, this.matches, this.picked, direction));
  }

  chooseRange(from, to, rows) {
    this.range = to > from ? { from, to } : null;
    this.rows = rows;
    this.redraw();
  }
  sumUp() {
    if (this.range) showSums(this.trace, this.rows, this.range, sumRange(this.trace, this.rows, this.range.from, this.range.to));
  }
  markPicked() {
    if (!this.picked) return;
    const { row, level, at } = this.picked;
    this.chooseRange(level.starts[at], level.ends[at], [row]);
    this.sumUp();
  }
  markView() {
    this.chooseRange(Math.max(this.view.from, 0), Math.min(this.view.to, this.trace.end), this.trace.rows);
    this.sumUp();
  }

  pin(lane) {
    lane.pin = lane.pin ? "" : "above";
    const box = byId("rows").querySelector(`[data-lane="${this.lanes.indexOf(lane)}"]`);
    if (box) box.checked = Boolean(lane.pin);
    this.setHeight();
    this.redraw();
  }
  pinPicked() {
    if (this.picked) this.pin(this.lanes.find((lane) => lane.row === this.picked.row));
  }
  listRows() {
    byId("rows").replaceChildren(...this.lanes.flatMap((lane, number) => {
      if (lane.kind === "process") return [element("strong", lane.title)];
      const label = element("label"), box = element("input", "", { type: "checkbox", checked: Boolean(lane.pin) });
      box.dataset.lane = number;
      box.onchange = () => this.pin(lane);
      label.append(box, ` ${lane.title}`);
      return [label];
    }));
  }
}
