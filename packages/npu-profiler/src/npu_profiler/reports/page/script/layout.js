// Positions of rows and curves: pinned ones above and below, the scrolling ones between them.

const SLICE = 17, HEAD = 20, RULER = 24, CURVE = 52, GAP = 6;

// Everything that can be drawn, in order: a process, its rows, its curves.
function makeLanes(trace) {
  const lanes = [], processes = new Set();
  for (const row of trace.rows) processes.add(row.process);
  for (const curve of trace.curves) processes.add(curve.process);
  for (const process of processes) {
    lanes.push({ kind: "process", title: process.name, height: HEAD });
    for (const row of trace.rows) {
      if (row.process !== process) continue;
      lanes.push({ kind: "row", title: row.name, process, row, height: row.levels.length * SLICE + GAP, pin: "" });
    }
    for (const curve of trace.curves) {
      if (curve.process !== process) continue;
      lanes.push({ kind: "curve", title: curve.name, process, curve, height: CURVE + GAP, pin: "" });
    }
  }
  // The memory stays visible under the timeline until it is unpinned.
  const curves = lanes.filter((lane) => lane.kind === "curve"), named = (text) => curves.find(({ title }) => title.includes(text));
  const memory = named("allocated_bytes") || named("resident_bytes");
  if (memory) memory.pin = "below";
  return lanes;
}

function labelWidth(width) {
  return width < 600 ? 92 : 210;
}

// Positions of the visible lanes at a scroll offset, from top to bottom.
function placeLanes(lanes, height, scrolled) {
  const above = lanes.filter((lane) => lane.pin === "above"), below = lanes.filter((lane) => lane.pin === "below");
  const between = lanes.filter((lane) => !lane.pin), sum = (some) => some.reduce((all, lane) => all + lane.height, 0);
  // At most half of the screen is pinned on either side, so that other rows stay visible.
  const room = Math.max(height - RULER, 0);
  const top = RULER + Math.min(sum(above), room / 2), bottom = height - Math.min(sum(below), room / 3);
  const places = [];
  const stack = (some, y, from, to) => {
    for (const lane of some) {
      if (y + lane.height > from && y < to) places.push({ lane, y, from, to });
      y += lane.height;
    }
  };
  stack(between, top - scrolled, top, bottom);
  stack(above, RULER, RULER, top);
  stack(below, bottom, bottom, height);
  return { places, top, bottom, needed: top + sum(between) + height - bottom };
}

// The scroll offset at which a row's depth is visible.
function scrollTo(lanes, height, scrolled, row, depth) {
  const lane = lanes.find((one) => one.row === row);
  if (!lane || lane.pin) return scrolled;
  const { top, bottom } = placeLanes(lanes, height, scrolled);
  let y = depth * SLICE;
  for (const one of lanes) {
    if (one === lane) break;
    if (!one.pin) y += one.height;
  }
  const room = bottom - top;
  return y >= scrolled && y + SLICE <= scrolled + room ? scrolled : Math.max(y - room / 3, 0);
}
