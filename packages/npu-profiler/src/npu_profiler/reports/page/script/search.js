// Finds slices by a part of their name, and the next one in time.

function findMatches(trace, query) {
  const wanted = query.toLowerCase();
  const isWanted = Uint8Array.from(trace.words, (word) => word.toLowerCase().includes(wanted));
  let count = 0;
  const byLevel = new Map();
  for (const row of trace.rows) for (const level of row.levels) {
    const found = new Column(Uint32Array);
    level.names.forEach((name, at) => { if (isWanted[name]) found.push(at); });
    if (!found.size) continue;
    byLevel.set(level, found.view());
    count += found.size;
  }
  return { query, count, byLevel };
}

// The match after or before a slice, by time, then by row; wraps around at the ends.
function nextMatch(trace, matches, picked, direction) {
  const places = [];
  trace.rows.forEach((row) => row.levels.forEach((level, depth) => places.push({ row, level, depth })));
  const here = picked ? places.findIndex(({ level }) => level === picked.level) : -1;
  const time = picked ? picked.level.starts[picked.at] : direction > 0 ? -1 : Infinity;
  const isLater = (one, other) => one.time > other.time || (one.time === other.time && one.place > other.place);
  let best = null, wrapped = null;
  places.forEach(({ row, level, depth }, place) => {
    const found = matches.byLevel.get(level);
    if (!found) return;
    const candidate = (index) => {
      if (index < 0 || index >= found.length) return null;
      return { row, level, depth, at: found[index], place, time: level.starts[found[index]] };
    };
    const isBetter = (one, other) => one && (!other || (direction > 0 ? isLater(other, one) : isLater(one, other)));
    // Matches at the same moment are ordered by row.
    let low = 0, high = found.length;
    while (low < high) {
      const middle = (low + high) >> 1, start = level.starts[found[middle]];
      const isBefore = start < time || (start === time && (direction > 0 ? place <= here : place < here));
      if (isBefore) low = middle + 1; else high = middle;
    }
    const next = candidate(direction > 0 ? low : low - 1);
    if (isBetter(next, best)) best = next;
    const edge = candidate(direction > 0 ? 0 : found.length - 1);
    if (isBetter(edge, wrapped)) wrapped = edge;
  });
  return best || wrapped;
}
