// Times in a range, summed by name.

// Slices of some rows in a range; only the part inside the range counts.
function sumRange(trace, rows, from, to) {
  const counts = new Uint32Array(trace.words.length), totals = new Float64Array(trace.words.length);
  for (const row of rows) for (const { starts, ends, names } of row.levels) {
    for (let at = firstAbove(ends, from); at < starts.length && starts[at] < to; at++) {
      counts[names[at]]++;
      totals[names[at]] += Math.min(ends[at], to) - Math.max(starts[at], from);
    }
  }
  const found = [];
  counts.forEach((count, name) => {
    if (count) found.push({ name: trace.words[name], count, total: totals[name], mean: totals[name] / count });
  });
  return found.sort((one, other) => other.total - one.total || (one.name < other.name ? -1 : 1));
}
