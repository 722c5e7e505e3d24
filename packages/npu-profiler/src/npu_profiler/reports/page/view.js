// The page of a trace: draws the timeline on a canvas and fills the tables. No library, no network.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const LABEL = 210, ROW = 16, HEAD = 20, RULER = 24, CURVE = 54, GAP = 6, GATHERED = -1;
  const HUES = [221, 12, 145, 38, 280, 190, 330, 95, 255, 60];

  // Starts are written as differences.
  const sums = (steps) => { const out = new Float64Array(steps.length); let at = 0;
    for (let i = 0; i < steps.length; i++) out[i] = at += steps[i]; return out; };
  for (const track of data.tracks) for (const level of track.levels) {
    level.s = sums(level.s); level.d = Float64Array.from(level.d);
  }
  for (const curve of data.counters) { curve.t = sums(curve.t); curve.top = Math.max(...curve.v, 0) || 1; }

  // Rows from top to bottom: curves stand below the tracks of their process.
  const processes = [...new Set([...data.tracks, ...data.counters].map((one) => one.process))];
  const lanes = [];
  let bottom = RULER;
  for (const process of processes) {
    lanes.push({ kind: "process", process, y: bottom, height: HEAD }); bottom += HEAD;
    data.tracks.forEach((track, row) => {
      if (track.process !== process) return;
      const height = Math.max(track.levels.length, 1) * ROW + GAP;
      track.y = bottom;
      lanes.push({ kind: "track", track, row, y: bottom, height }); bottom += height;
    });
    for (const curve of data.counters) {
      if (curve.process !== process) continue;
      lanes.push({ kind: "curve", curve, y: bottom, height: CURVE + GAP }); bottom += CURVE + GAP;
    }
  }

  const canvas = $("canvas"), scroll = $("scroll"), pen = canvas.getContext("2d");
  $("space").style.height = `${bottom + 8}px`;
  let view = { from: data.begin, to: data.end }, width = 0, height = 0, query = "", matches = null;
  let picked = null, measured = null, wanted = false;

  const span = () => view.to - view.from;
  const x = (ns) => LABEL + (ns - view.from) / span() * (width - LABEL);
  const timeAt = (px) => view.from + (px - LABEL) / (width - LABEL) * span();

  function time(ns) {
    const size = Math.abs(ns);
    if (size >= 1e9) return `${(ns / 1e9).toFixed(3)} s`;
    if (size >= 1e6) return `${(ns / 1e6).toFixed(3)} ms`;
    if (size >= 1e3) return `${(ns / 1e3).toFixed(2)} µs`;
    return `${Math.round(ns)} ns`;
  }
  function bytes(value) {
    for (const unit of ["B", "KiB", "MiB", "GiB"]) {
      if (Math.abs(value) < 1024) return `${value.toFixed(unit === "B" ? 0 : 1)} ${unit}`;
      value /= 1024;
    }
    return `${value.toFixed(1)} TiB`;
  }
  const curveValue = (curve, value) => /bytes|rss|memory/.test(curve.name) ? bytes(value) : value.toLocaleString();

  const hues = new Map();
  function colour(name) {
    if (!hues.has(name)) {
      // Names of one kind, such as aten::mm and aten::addmm, get neighbouring tones of one hue.
      const word = data.names[name], kind = word.split(/[:./ ]/)[0];
      let hash = 0, tone = 0;
      for (const c of kind) hash = (hash * 31 + c.codePointAt(0)) >>> 0;
      for (const c of word) tone = (tone * 17 + c.codePointAt(0)) >>> 0;
      hues.set(name, `hsl(${HUES[hash % HUES.length] + tone % 25} 55% ${58 + tone % 13}%)`);
    }
    return hues.get(name);
  }
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

  function firstVisible(level, from) {
    let low = 0, high = level.s.length;
    while (low < high) { const mid = (low + high) >> 1;
      if (level.s[mid] + level.d[mid] < from) low = mid + 1; else high = mid; }
    return low;
  }
  function label(level, box) {
    const name = level.n[box];
    return name === GATHERED ? `${level.c[box].toLocaleString()} short slices` : data.names[name];
  }

  function draw() {
    wanted = false;
    const ink = style("--ink"), soft = style("--soft"), line = style("--line"), page = style("--page");
    const panel = style("--panel"), top = scroll.scrollTop;
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
    pen.save(); pen.beginPath(); pen.rect(0, RULER, width, height - RULER); pen.clip();
    for (const lane of lanes) {
      const y = lane.y - top;
      if (y + lane.height < RULER || y > height) continue;
      if (lane.kind === "process") { pen.fillStyle = panel; pen.fillRect(0, y, width, HEAD - 2); continue; }
      pen.fillStyle = line; pen.fillRect(0, y + lane.height - 3, width, 1);
      if (lane.kind === "track") drawTrack(lane.track, y, page);
      else drawCurve(lane.curve, y, soft, ink);
    }
    drawArrows(top, soft); drawMarks(top);
    for (const lane of lanes) {
      const y = lane.y - top;
      if (y + lane.height < RULER || y > height) continue;
      if (lane.kind !== "process") { pen.fillStyle = page; pen.fillRect(0, y, LABEL, lane.height - 3); }
      pen.fillStyle = ink;
      pen.font = lane.kind === "process" ? "bold 12px system-ui, sans-serif" : "11px system-ui, sans-serif";
      const text = lane.kind === "process" ? lane.process : lane.kind === "track" ? lane.track.name : lane.curve.name;
      pen.fillText(clip(text, LABEL - 18), lane.kind === "process" ? 8 : 14, y + ROW / 2 + 1);
      if (lane.kind === "curve") { pen.fillStyle = soft; pen.fillText(`peak ${curveValue(lane.curve, lane.curve.top)}`, 14, y + ROW * 1.5); }
    }
    pen.restore();
    drawRuler(soft, line, page); drawMeasured(ink);
  }

  function clip(text, room) {
    if (pen.measureText(text).width <= room) return text;
    let count = Math.floor(text.length * room / pen.measureText(text).width);
    while (count > 0 && pen.measureText(`${text.slice(0, count)}…`).width > room) count--;
    return count > 0 ? `${text.slice(0, count)}…` : "";
  }

  function drawTrack(track, y, page) {
    track.levels.forEach((level, depth) => {
      const top = y + depth * ROW;
      if (top + ROW < 0 || top > height) return;
      let drawnTo = -1;
      for (let box = firstVisible(level, view.from); box < level.s.length && level.s[box] < view.to; box++) {
        const left = Math.max(x(level.s[box]), LABEL), right = Math.min(x(level.s[box] + level.d[box]), width);
        // Several boxes within one pixel are one stroke.
        if (right <= drawnTo && right - left < 1) continue;
        drawnTo = Math.ceil(right * 2) / 2;
        const name = level.n[box], size = Math.max(right - left, .6);
        pen.globalAlpha = matches && !matches.has(name) ? .18 : 1;
        pen.fillStyle = name === GATHERED ? "#9e9e9e" : colour(name);
        pen.fillRect(left, top, size > 3 ? size - .6 : size, ROW - 2);
        if (picked && picked.level === level && picked.box === box) {
          pen.strokeStyle = style("--ink"); pen.lineWidth = 2; pen.strokeRect(left, top, size, ROW - 2); pen.lineWidth = 1;
        }
        if (size > 26) { pen.fillStyle = "#111"; pen.fillText(clip(label(level, box), size - 6), left + 3, top + ROW / 2 - .5); }
      }
      pen.globalAlpha = 1;
    });
  }

  function drawCurve(curve, y, soft, ink) {
    const base = y + CURVE, at = (value) => base - value / curve.top * (CURVE - 6);
    pen.beginPath(); pen.moveTo(LABEL, base);
    let last = 0;
    for (let i = 0; i < curve.t.length; i++) {
      const left = x(curve.t[i]);
      if (left < LABEL) { last = curve.v[i]; continue; }
      if (left > width) break;
      pen.lineTo(left, at(last)); pen.lineTo(left, at(curve.v[i])); last = curve.v[i];
    }
    pen.lineTo(Math.min(x(data.end), width), at(last)); pen.lineTo(Math.min(x(data.end), width), base);
    pen.fillStyle = "rgba(63,81,181,.25)"; pen.fill(); pen.strokeStyle = "rgb(63,81,181)"; pen.stroke();
  }

  function drawArrows(top, soft) {
    if (picked === null || picked.row === undefined) return;
    pen.strokeStyle = soft;
    const from = picked.level.s[picked.box], to = from + picked.level.d[picked.box];
    const holds = (row, ns) => row === picked.row && ns >= from && ns <= to;
    for (const [source, sourceNs, target, targetNs] of data.arrows) {
      if (!holds(source, sourceNs) && !holds(target, targetNs)) continue;
      const x0 = x(sourceNs), x1 = x(targetNs), y0 = data.tracks[source].y - top + ROW / 2, y1 = data.tracks[target].y - top;
      pen.beginPath(); pen.moveTo(x0, y0); pen.bezierCurveTo(x0 + 30, y0, x1 - 30, y1, x1, y1 + 2); pen.stroke();
    }
  }

  function drawMarks(top) {
    pen.fillStyle = "#d32f2f";
    for (const [row, ns] of data.marks) {
      const at = x(ns), y = data.tracks[row].y - top;
      if (at < LABEL || at > width || y < 0 || y > height) continue;
      pen.beginPath(); pen.moveTo(at - 4, y - 5); pen.lineTo(at + 4, y - 5); pen.lineTo(at, y + 2); pen.fill();
    }
  }

  function drawRuler(soft, line, page) {
    pen.fillStyle = page; pen.fillRect(0, 0, width, RULER);
    pen.fillStyle = soft; pen.strokeStyle = line; pen.font = "11px system-ui, sans-serif";
    const rough = span() / Math.max((width - LABEL) / 110, 1), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    for (let ns = Math.ceil((view.from - data.begin) / step) * step; ns <= view.to - data.begin; ns += step) {
      const at = x(ns + data.begin);
      pen.beginPath(); pen.moveTo(at, RULER - 6); pen.lineTo(at, height); pen.globalAlpha = .5; pen.stroke(); pen.globalAlpha = 1;
      pen.fillText(time(ns), at + 3, RULER / 2);
    }
    pen.fillText(`${time(span())} shown`, 8, RULER / 2);
  }

  function drawMeasured(ink) {
    if (!measured) return;
    const from = x(Math.min(...measured)), to = x(Math.max(...measured));
    pen.fillStyle = "rgba(255,193,7,.25)"; pen.fillRect(from, RULER, to - from, height);
    pen.fillStyle = ink; pen.fillText(time(Math.abs(measured[1] - measured[0])), from + 4, RULER + 10);
  }

  function redraw() { if (!wanted) { wanted = true; requestAnimationFrame(draw); } }
  function resize() {
    const ratio = devicePixelRatio || 1;
    width = scroll.clientWidth; height = scroll.clientHeight;
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0); redraw();
  }
  function show(from, to) {
    const whole = data.end - data.begin, size = Math.min(Math.max(to - from, 20), whole * 1.1);
    const start = Math.min(Math.max(from, data.begin - whole * .05), data.end + whole * .05 - size);
    view = { from: start, to: start + size }; redraw();
  }
  const zoom = (factor, at) => show(at - (at - view.from) * factor, at + (view.to - at) * factor);
  const pan = (share) => show(view.from + span() * share, view.to + span() * share);

  function hit(event) {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    if (px < LABEL || py < RULER) return null;
    const y = py + scroll.scrollTop, lane = lanes.find((one) => y >= one.y && y < one.y + one.height);
    const ns = timeAt(px);
    if (!lane || lane.kind === "process") return null;
    if (lane.kind === "curve") {
      let at = -1;
      while (at + 1 < lane.curve.t.length && lane.curve.t[at + 1] <= ns) at++;
      return { text: `${lane.curve.name}: ${at < 0 ? "nothing yet" : curveValue(lane.curve, lane.curve.v[at])} at ${time(ns - data.begin)}` };
    }
    const near = data.marks.find(([row, when]) => row === lane.row && Math.abs(x(when) - px) < 5 && y - lane.y < 4);
    if (near) return { text: `${data.names[near[2]]} at ${time(near[1] - data.begin)}` };
    const depth = Math.floor((y - lane.y) / ROW), level = lane.track.levels[depth];
    if (!level) return null;
    const slack = span() / (width - LABEL);
    let found = -1;
    for (let i = firstVisible(level, ns - slack); i < level.s.length && level.s[i] <= ns + slack; i++) found = i;
    if (found < 0) return null;
    const extra = data.details[`${lane.row}/${depth}/${found}`];
    const text = `${label(level, found)}\n${time(level.d[found])} from ${time(level.s[found] - data.begin)} in ${lane.track.process}, ${lane.track.name}`;
    return { row: lane.row, level, box: found, text: extra ? `${text}\n${extra}` : text };
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    const ns = timeAt(event.offsetX);
    drag = { x: event.offsetX, y: event.clientY, top: scroll.scrollTop, from: view.from, to: view.to, moved: false };
    measured = event.shiftKey ? [ns, ns] : null;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const shift = event.offsetX - drag.x;
      drag.moved = drag.moved || Math.abs(shift) > 3 || Math.abs(event.clientY - drag.y) > 3;
      if (measured) { measured[1] = timeAt(event.offsetX); redraw(); return; }
      const ns = shift / (width - LABEL) * (drag.to - drag.from);
      scroll.scrollTop = drag.top - (event.clientY - drag.y);
      show(drag.from - ns, drag.to - ns);
      return;
    }
    const found = hit(event), tip = $("tip");
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = found.text.split("\n").slice(0, 8).join("\n");
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved && !measured) {
      picked = hit(event);
      $("details").textContent = picked ? picked.text : "";
      if (picked && picked.row === undefined) picked = null;
    }
    drag = null; redraw();
  });
  canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; });
  canvas.addEventListener("dblclick", (event) => {
    const found = hit(event);
    if (found && found.level) { const s = found.level.s[found.box], d = found.level.d[found.box]; show(s - d * .1, s + d * 1.1); }
  });
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : .8, timeAt(event.offsetX)); }
    else if (event.deltaX) { event.preventDefault(); pan(event.deltaX / width); }
  }, { passive: false });
  scroll.addEventListener("scroll", redraw);
  const middle = () => (view.from + view.to) / 2;
  const keys = { w: () => zoom(.7, middle()), s: () => zoom(1.4, middle()), a: () => pan(-.2), d: () => pan(.2),
    ArrowLeft: () => pan(-.2), ArrowRight: () => pan(.2), f: () => show(data.begin, data.end) };
  addEventListener("keydown", (event) => {
    if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || $("timeline").hidden) return;
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  $("tools").addEventListener("click", (event) => {
    const what = event.target.dataset.do;
    if (what) ({ in: keys.w, out: keys.s, fit: keys.f })[what]();
  });

  // Tables.
  const titles = { op: "ops", program: "programs", type: "types of layers", layer: "layers" };
  let current = "timeline", order = { column: -1, falling: true };
  function cell(value, unit) {
    if (value === null || value === undefined) return "-";
    if (unit === "ns") return (value / 1e6).toFixed(value >= 1e8 ? 1 : 3);
    if (unit === "share") return `${(value * 100).toFixed(1)} %`;
    if (unit === "bytes") return bytes(value);
    if (unit === "count") return value.toLocaleString();
    if (unit === "number") return Number(value).toPrecision(4);
    return String(value);
  }
  function fillTable(name) {
    const source = data.tables[name], place = $("table"), table = document.createElement("table");
    let rows = source.rows.filter((row) => !query || row.some((value) => typeof value === "string" && value.toLowerCase().includes(query)));
    if (order.column >= 0) {
      const sign = order.falling ? -1 : 1, at = order.column;
      rows = [...rows].sort((a, b) => a[at] === b[at] ? 0 : a[at] === null ? 1 : b[at] === null ? -1 : a[at] < b[at] ? -sign : sign);
    }
    table.createCaption().textContent = source.title;
    const head = table.createTHead().insertRow(), body = table.createTBody();
    source.columns.forEach(([title, unit], index) => {
      const th = document.createElement("th");
      th.textContent = title + (order.column === index ? (order.falling ? " ↓" : " ↑") : "");
      th.className = unit === "text" ? "text" : "";
      th.onclick = () => { order = { column: index, falling: order.column === index ? !order.falling : unit !== "text" }; fillTable(name); };
      head.append(th);
    });
    for (const row of rows) {
      const line = body.insertRow();
      row.forEach((value, index) => {
        const unit = source.columns[index][1], td = line.insertCell();
        td.textContent = cell(value, unit); td.className = unit === "text" ? "text" : "";
      });
    }
    place.replaceChildren(table);
  }
  function open(name) {
    current = name; order = { column: -1, falling: true };
    for (const button of $("tabs").children) button.setAttribute("aria-pressed", button.dataset.name === name);
    $("timeline").hidden = name !== "timeline"; $("table").hidden = name === "timeline";
    if (name === "timeline") resize(); else fillTable(name);
  }
  for (const name of ["timeline", ...Object.keys(data.tables)]) {
    const button = document.createElement("button");
    button.textContent = titles[name] || name; button.dataset.name = name; button.onclick = () => open(name);
    $("tabs").append(button);
  }
  $("search").addEventListener("input", (event) => {
    query = event.target.value.trim().toLowerCase();
    matches = query ? new Set(data.names.flatMap((word, at) => word.toLowerCase().includes(query) ? [at] : [])) : null;
    let count = 0;
    if (matches) for (const track of data.tracks) for (const level of track.levels) for (const name of level.n) if (matches.has(name)) count++;
    $("found").textContent = matches ? `${count.toLocaleString()} found` : "";
    if (current === "timeline") redraw(); else fillTable(current);
  });
  $("notes").querySelector("div").append(...data.notes.map((text) => { const p = document.createElement("div"); p.textContent = text; return p; }));
  if (data.cell) $("notes").open = true;
  addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  open("timeline");
})();
