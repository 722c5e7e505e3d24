// Slices as typed arrays: grown while a trace is read, then sorted and divided by their depth.

class Column {
  constructor(kind) {
    this.values = new kind(256);
    this.size = 0;
  }
  push(value) {
    if (this.size === this.values.length) {
      const larger = new this.values.constructor(this.size * 2);
      larger.set(this.values);
      this.values = larger;
    }
    this.values[this.size++] = value;
  }
  view() {
    return this.values.subarray(0, this.size);
  }
}

// The order of slices by their start, the enclosing one first.
function sortSlices(starts, durations) {
  const count = starts.length;
  let order = new Uint32Array(count);
  let isSorted = true, last = 0;
  for (let i = 0; i < count; i++) {
    order[i] = i;
    last = Math.max(last, starts[i]);
    if (i && (starts[i] < starts[i - 1] || (starts[i] === starts[i - 1] && durations[i] > durations[i - 1]))) {
      isSorted = false;
    }
  }
  if (isSorted) return order;
  // A radix sort, 16 bits at a time: comparing a million slices takes a second, this a tenth.
  for (let unit = 1; unit <= last; unit *= 65536) {
    const places = new Uint32Array(65537), next = new Uint32Array(count);
    for (let i = 0; i < count; i++) places[Math.floor(starts[i] / unit) % 65536 + 1]++;
    for (let i = 1; i < places.length; i++) places[i] += places[i - 1];
    for (let i = 0; i < count; i++) next[places[Math.floor(starts[order[i]] / unit) % 65536]++] = order[i];
    order = next;
  }
  for (let i = 1; i < count; i++) {
    const moved = order[i];
    let at = i;
    while (at && starts[order[at - 1]] === starts[moved] && durations[order[at - 1]] < durations[moved]) {
      order[at] = order[at - 1];
      at--;
    }
    order[at] = moved;
  }
  return order;
}

// Divides slices by depth. Slices of one depth do not overlap, so their ends are ascending too.
function divideByDepth(columns, first) {
  const [starts, durations, names, kinds, places] = columns.map((column) => column.view());
  const order = sortSlices(starts, durations);
  const depths = new Uint16Array(order.length), sizes = [], ends = [];
  for (let i = 0; i < order.length; i++) {
    const start = starts[order[i]];
    while (ends.length && ends[ends.length - 1] <= start) ends.pop();
    depths[i] = ends.length;
    sizes[ends.length] = (sizes[ends.length] || 0) + 1;
    ends.push(start + durations[order[i]]);
  }
  const levels = sizes.map((size) => ({
    starts: new Float64Array(size), ends: new Float64Array(size), names: new Uint32Array(size),
    kinds: new Uint32Array(size), places: new Float64Array(size),
  }));
  const filled = sizes.map(() => 0);
  for (let i = 0; i < order.length; i++) {
    const level = levels[depths[i]], at = filled[depths[i]]++, from = order[i];
    level.starts[at] = starts[from] - first;
    level.ends[at] = starts[from] - first + durations[from];
    level.names[at] = names[from];
    level.kinds[at] = kinds[from];
    level.places[at] = places[from];
  }
  return levels;
}

// The first of ascending values above a bound.
function firstAbove(values, bound, from = 0) {
  let low = from, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= bound) low = middle + 1; else high = middle;
  }
  return low;
}

// The slice of a level at a moment, its last nanosecond included; -1 for none.
function sliceAt(level, time) {
  const at = firstAbove(level.starts, time) - 1;
  return at >= 0 && time <= level.ends[at] ? at : -1;
}
