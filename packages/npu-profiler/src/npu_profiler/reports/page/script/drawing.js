// Draws the timeline on a canvas: boxes, arrows, marks, curves, the ruler and the chosen range.

const HUES = [221, 12, 145, 38, 280, 190, 330, 95, 255, 60];
const FONT = "11px system-ui, sans-serif", BOLD = "bold 12px system-ui, sans-serif";
// Narrower slices are merged: one is drawn for all that end within this many pixels.
const DENSE = 2, MOST_ARROWS = 60;

class Drawing {
  constructor(canvas, page) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.page = page;
    this.colours = new Map();
    this.widths = new Map();
    this.width = this.height = 0;
  }
  resize(width, height) {
    const ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  }
  readStyle() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ink", "soft", "line", "paper", "panel", "mark"]) this[name] = style.getPropertyValue(`--${name}`);
  }
  get left() { return labelWidth(this.width); }
  x(time) {
    const { from, to } = this.page.view;
    return this.left + (time - from) / (to - from) * (this.width - this.left);
  }
  timeAt(x) {
    const { from, to } = this.page.view;
    return from + (x - this.left) / (this.width - this.left) * (to - from);
  }

  draw() {
    const { pen, page } = this;
    pen.clearRect(0, 0, this.width, this.height);
    pen.textBaseline = "middle";
    this.placed = placeLanes(page.lanes, this.height, page.scrolled);
    pen.fillStyle = this.line;
    for (const time of this.ticks()) pen.fillRect(this.x(time), 0, 1, this.height);
    for (const place of this.placed.places) this.clipTo(this.left, place, () => this.drawLane(place));
    this.drawMarks();
    this.drawArrows();
    for (const place of this.placed.places) this.clipTo(0, place, () => this.drawLabel(place));
    this.drawRuler();
    this.drawRange();
    pen.fillStyle = this.ink;
    for (const y of [this.placed.top, this.placed.bottom]) if (y > RULER && y < this.height) pen.fillRect(0, y - 1, this.width, 1);
  }
  clipTo(left, { from, to }, draw) {
    this.pen.save();
    this.pen.beginPath();
    this.pen.rect(left, from, this.width - left, to - from);
    this.pen.clip();
    draw();
    this.pen.restore();
  }

  drawLane({ lane, y, from, to }) {
    const pen = this.pen;
    if (lane.kind === "process") {
      pen.fillStyle = this.panel;
      pen.fillRect(0, y, this.width, HEAD - 2);
      return;
    }
    pen.fillStyle = this.line;
    pen.fillRect(0, y + lane.height - 3, this.width, 1);
    if (lane.kind === "curve") this.drawCurve(lane.curve, y);
    else lane.row.levels.forEach((level, depth) => {
      const top = y + depth * SLICE;
      if (top + SLICE > from && top < to) this.drawLevel(level, top);
    });
  }

  drawLevel(level, top) {
    const { matches, picked } = this.page;
    this.pen.font = FONT;
    this.pen.globalAlpha = matches ? .22 : 1;
    this.drawBoxes(level, null, top);
    this.pen.globalAlpha = 1;
    const found = matches && matches.byLevel.get(level);
    if (found) this.drawBoxes(level, found, top);
    if (!picked) return;
    for (const one of this.page.chain) {
      if (one.level !== level) continue;
      const left = Math.max(this.x(level.starts[one.at]), this.left - 4);
      const right = Math.min(this.x(level.ends[one.at]), this.width + 4);
      this.pen.strokeStyle = one.at === picked.at && level === picked.level ? this.ink : this.mark;
      this.pen.lineWidth = 2;
      this.pen.strokeRect(left, top + 1, Math.max(right - left, 2), SLICE - 4);
    }
  }

  // Boxes of a level, or of some of its slices, by their index: at most as many as fit.
  drawBoxes(level, chosen, top) {
    const { pen } = this, { from, to } = this.page.view, { starts, ends, names } = level;
    const count = chosen ? chosen.length : starts.length, number = (place) => (chosen ? chosen[place] : place);
    const after = (values, bound, low) => {
      let high = count;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (values[number(middle)] <= bound) low = middle + 1; else high = middle;
      }
      return low;
    };
    const pixel = (to - from) / (this.width - this.left);
    for (let place = after(ends, from, 0); place < count; ) {
      const at = number(place), start = starts[at];
      if (start >= to) break;
      const left = Math.max(this.x(start), this.left), right = Math.min(this.x(ends[at]), this.width);
      pen.fillStyle = this.colour(names[at]);
      if (right - left >= DENSE) {
        pen.fillRect(left, top, right - left - .6, SLICE - 2);
        if (right - left > 26) this.drawText(names[at], left + 3, top + SLICE / 2 - .5, right - left - 6);
        place++;
        continue;
      }
      pen.fillRect(left, top, Math.max(right - left, 1), SLICE - 2);
      const next = after(ends, start + DENSE * pixel, place + 1);
      if (next > place + 2) pen.fillRect(left, top, DENSE, SLICE - 2);
      place = next;
    }
  }
  drawText(name, x, y, room) {
    const text = this.page.trace.words[name];
    if (!this.widths.has(name)) this.widths.set(name, this.pen.measureText(text).width);
    this.pen.fillStyle = "#111";
    this.pen.fillText(this.cut(text, room, this.widths.get(name)), x, y);
  }

  colour(name) {
    if (!this.colours.has(name)) {
      // Names of one kind, such as aten::mm and aten::addmm, get neighbouring tones of one hue.
      const word = this.page.trace.words[name], kind = word.split(/[:./ ]/)[0];
      let hash = 0, tone = 0;
      for (const c of kind) hash = (hash * 31 + c.codePointAt(0)) >>> 0;
      for (const c of word) tone = (tone * 17 + c.codePointAt(0)) >>> 0;
      this.colours.set(name, `hsl(${HUES[hash % HUES.length] + tone % 25} 55% ${62 + tone % 11}%)`);
    }
    return this.colours.get(name);
  }

  drawCurve(curve, y) {
    const { pen } = this, { from, to } = this.page.view, { times, values, top } = curve;
    const base = y + CURVE, height = (value) => value / top * (CURVE - 8);
    let at = Math.max(firstAbove(times, from) - 1, 0);
    if (!times.length || times[at] > to) return;
    pen.fillStyle = this.mark;
    pen.globalAlpha = .55;
    // The highest of the values within a pixel, so that peaks stay visible.
    for (let x = Math.max(this.x(times[at]), this.left); at < times.length && times[at] < to; ) {
      const next = firstAbove(times, this.timeAt(Math.floor(x) + 1), at), last = Math.max(next - 1, at);
      let most = 0;
      for (let i = at; i <= last; i++) most = Math.max(most, values[i]);
      const edge = Math.floor(x) + 1;
      pen.fillRect(Math.floor(x), base - height(most), 1, height(most));
      const end = next < times.length ? Math.min(this.x(times[next]), this.width) : this.width;
      if (end > edge) pen.fillRect(edge, base - height(values[last]), end - edge, height(values[last]));
      if (next >= times.length) break;
      at = next;
      x = Math.max(end, edge);
    }
    pen.globalAlpha = 1;
  }

  drawMarks() {
    this.pen.fillStyle = "#d4380d";
    for (const place of this.placed.places) {
      if (place.lane.kind !== "row") continue;
      this.clipTo(this.left, place, () => {
        let last = -9;
        for (const mark of this.page.marksOf.get(place.lane.row) || []) {
          const x = this.x(mark.time);
          if (x < last + 1 || x > this.width) continue;
          last = x;
          this.pen.beginPath();
          this.pen.moveTo(x - 4, place.y - 3);
          this.pen.lineTo(x + 4, place.y - 3);
          this.pen.lineTo(x, place.y + 5);
          this.pen.fill();
        }
      });
    }
  }

  // The screen position of a moment of a row; null if it is not visible.
  point(row, time, isEffect) {
    const place = this.placed.places.find(({ lane }) => lane.row === row);
    if (!place) return null;
    const inner = isEffect ? targetOf({ row, time }) : innermost(row, time);
    const y = place.y + ((inner ? inner.depth : 0) + .5) * SLICE;
    return y < place.from || y > place.to ? null : { x: this.x(time), y };
  }
  drawArrows() {
    const { pen, page } = this, { from, to } = page.view;
    const seen = [], { causes, effects } = page.arrows, own = new Set([...causes, ...effects]);
    const begin = firstAbove(page.launchTimes, from), end = firstAbove(page.launchTimes, to);
    if (end - begin <= MOST_ARROWS) seen.push(...page.launches.slice(begin, end));
    pen.save();
    pen.beginPath();
    pen.rect(this.left, RULER, this.width, this.height - RULER);
    pen.clip();
    for (const flow of new Set([...seen, ...own])) {
      const source = this.point(flow.source.row, flow.source.time, false);
      const target = this.point(flow.target.row, flow.target.time, true);
      if (!source || !target) continue;
      const bend = Math.max(Math.abs(target.x - source.x) / 2, 14);
      pen.strokeStyle = pen.fillStyle = own.has(flow) ? this.mark : this.soft;
      pen.lineWidth = own.has(flow) ? 2 : 1;
      pen.beginPath();
      pen.moveTo(source.x, source.y);
      pen.bezierCurveTo(source.x + bend, source.y, target.x - bend, target.y, target.x - 5, target.y);
      pen.stroke();
      pen.beginPath();
      pen.moveTo(target.x, target.y);
      pen.lineTo(target.x - 6, target.y - 4);
      pen.lineTo(target.x - 6, target.y + 4);
      pen.fill();
    }
    pen.restore();
  }

  drawLabel({ lane, y }) {
    const { pen } = this, isHead = lane.kind === "process";
    if (!isHead) {
      pen.fillStyle = this.paper;
      pen.fillRect(0, y, this.left, lane.height - 3);
    }
    pen.fillStyle = this.ink;
    pen.font = isHead ? BOLD : FONT;
    const room = (isHead ? this.width : this.left) - 22;
    pen.fillText(this.cut(lane.title, room), isHead ? 8 : 14, y + SLICE / 2 + 1);
    if (lane.pin) pen.fillText("•", 5, y + SLICE / 2 + 1);
    if (lane.kind !== "curve") return;
    pen.fillStyle = this.soft;
    pen.fillText(this.cut(`peak ${curveText(lane.curve, lane.curve.top)}`, room), 14, y + SLICE * 1.5);
  }
  cut(text, room, width = this.pen.measureText(text).width) {
    return width <= room ? text : `${text.slice(0, Math.max(Math.floor(text.length * room / width) - 1, 1))}…`;
  }

  // Round times, at least a label's width apart.
  ticks() {
    const { from, to } = this.page.view, rough = (to - from) / Math.max((this.width - this.left) / 110, 1);
    const unit = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= rough);
    const found = [];
    for (let time = Math.ceil(from / step) * step; time < to; time += step) found.push(time);
    return found;
  }
  drawRuler() {
    const { pen } = this;
    pen.fillStyle = this.paper;
    pen.fillRect(0, 0, this.width, RULER - 1);
    pen.font = FONT;
    for (const time of this.ticks()) {
      const x = this.x(time);
      pen.fillStyle = this.line;
      pen.fillRect(x, 0, 1, RULER);
      pen.fillStyle = this.soft;
      pen.fillText(formatTime(Math.round(time)), x + 4, RULER / 2);
    }
    pen.fillStyle = this.line;
    pen.fillRect(0, RULER - 1, this.width, 1);
  }
  drawRange() {
    const { pen, page } = this;
    if (!page.range) return;
    const left = Math.max(this.x(page.range.from), this.left), right = Math.min(this.x(page.range.to), this.width);
    if (right <= left) return;
    pen.fillStyle = this.mark;
    pen.globalAlpha = .14;
    pen.fillRect(left, RULER, right - left, this.height);
    pen.globalAlpha = 1;
    pen.fillRect(left, 0, 1.5, this.height);
    pen.fillRect(right - 1.5, 0, 1.5, this.height);
    const text = formatTime(page.range.to - page.range.from);
    pen.font = BOLD;
    pen.fillStyle = this.paper;
    pen.fillRect(left + 2, 0, pen.measureText(text).width + 6, RULER - 1);
    pen.fillStyle = this.mark;
    pen.fillText(text, left + 5, RULER / 2);
  }

  // The object at a position: a slice, a mark, a curve's value, a lane's label; or null.
  hit(x, y) {
    const place = [...this.placed.places].reverse().find((one) => y >= Math.max(one.y, one.from) && y < Math.min(one.y + one.lane.height, one.to));
    if (!place || y < RULER) return null;
    const { lane } = place, time = this.timeAt(x), slack = this.timeAt(x + 1.5) - time;
    if (x < this.left || lane.kind === "process") return { lane, isLabel: lane.kind !== "process" };
    if (lane.kind === "curve") {
      const at = firstAbove(lane.curve.times, time) - 1;
      return { lane, text: `${lane.title}: ${at < 0 ? "nothing yet" : curveText(lane.curve, lane.curve.values[at])} at ${formatTime(time)}` };
    }
    const mark = (this.page.marksOf.get(lane.row) || []).find((one) => Math.abs(one.time - time) < slack * 3 && y - place.y < 6);
    if (mark) return { lane, text: `${mark.text} at ${formatTime(mark.time)}` };
    const depth = Math.floor((y - place.y) / SLICE), level = lane.row.levels[depth];
    if (!level) return { lane };
    let at = firstAbove(level.starts, time) - 1;
    if (at < 0 || level.ends[at] < time - slack) at++;
    if (at >= level.starts.length || level.starts[at] > time + slack) return { lane };
    return { lane, slice: { row: lane.row, level, depth, at } };
  }
}

const curveText = (curve, value) => (/bytes|rss|memory/.test(curve.name) ? formatBytes(value) : formatCount(value));
