// Reads Chrome trace JSON from its bytes: slices into columns, the few other events as objects.

const encode = (text) => new TextEncoder().encode(text);
// A slice as npu-profiler writes it. Others are read by JSON.parse, ten times as slowly.
const PLAIN = ['{"ph":"X","cat":"', '","name":"', '","pid":', ',"tid":', ',"ts":', ',"dur":'].map(encode);
const QUOTE = 34, ESCAPE = 92, OPEN = 123, CLOSE = 125, POINT = 46, ZERO = 48, END_OF_LIST = 93;
// Names of the device's events in torch's profiler.
const KINDS = { kernel: "program", gpu_memcpy: "copy" };
const LAUNCHES = new Set(["launch", "ac2g"]);

// Words by index: a trace has many events and few names.
class Words {
  constructor(bytes) {
    this.bytes = bytes;
    this.texts = [];
    this.numbers = new Map();
    this.byHash = new Map();
    this.samples = [];
  }
  number(text) {
    if (!this.numbers.has(text)) {
      this.numbers.set(text, this.texts.length);
      this.texts.push(text);
    }
    return this.numbers.get(text);
  }
  numberOfBytes(from, to, hash) {
    let found = this.byHash.get(hash);
    for (; found !== undefined; found = this.samples[found].next) {
      if (this.equals(this.samples[found], from, to)) return this.samples[found].number;
    }
    const number = this.number(new TextDecoder().decode(this.bytes.subarray(from, to)));
    this.samples.push({ from, size: to - from, number, next: this.byHash.get(hash) });
    this.byHash.set(hash, this.samples.length - 1);
    return number;
  }
  equals(sample, from, to) {
    if (sample.size !== to - from) return false;
    for (let i = 0; i < sample.size; i++) if (this.bytes[sample.from + i] !== this.bytes[from + i]) return false;
    return true;
  }
}

// The end of an object; -1 if the file ends before it.
function objectEnd(bytes, at, depth = 0) {
  let isText = false;
  for (; at < bytes.length; at++) {
    const byte = bytes[at];
    if (isText) {
      if (byte === ESCAPE) at++; else if (byte === QUOTE) isText = false;
    } else if (byte === QUOTE) isText = true;
    else if (byte === OPEN) depth++;
    else if (byte === CLOSE && --depth === 0) return at + 1;
  }
  return -1;
}

class TraceReader {
  constructor(bytes) {
    this.bytes = bytes;
    this.words = new Words(bytes);
    this.rows = [];
    this.byId = new Map();
    this.processes = new Map();
    this.marks = [];
    this.curves = new Map();
    this.flows = [];
    this.openFlows = new Map();
    this.isComplete = false;
    this.count = 0;
    this.latest = null;
    const head = new TextDecoder().decode(bytes.subarray(0, 1 << 20));
    const begin = /^\s*(?:\[|\{[^]*?"traceEvents"\s*:\s*\[)/.exec(head);
    if (!begin) throw new Error("not a Chrome trace in JSON");
    this.at = encode(begin[0]).length;
  }

  // Reads for some milliseconds; returns whether everything is read.
  readFor(milliseconds) {
    const until = performance.now() + milliseconds;
    for (let i = 1; ; i++) {
      if (i % 1024 === 0 && performance.now() > until) return false;
      while (this.at < this.bytes.length && this.bytes[this.at] !== OPEN && this.bytes[this.at] !== END_OF_LIST) this.at++;
      if (this.bytes[this.at] !== OPEN) {
        this.isComplete = this.bytes[this.at] === END_OF_LIST;
        return true;
      }
      if (this.readPlain()) continue;
      const end = objectEnd(this.bytes, this.at);
      if (end < 0) return true;
      this.add(parseEvent(this.bytes, this.at), this.at);
      this.at = end;
    }
  }

  // Reads a slice in the form of PLAIN; returns false, without moving, at any other event.
  readPlain() {
    const bytes = this.bytes, values = [0, 0, 0, 0, 0, 0];
    let at = this.at;
    for (let field = 0; field < 6; field++) {
      const text = PLAIN[field];
      for (let i = 0; i < text.length; i++) if (bytes[at + i] !== text[i]) return false;
      at += text.length;
      if (field < 2) {
        const from = at;
        let hash = 0;
        for (; bytes[at] !== QUOTE; at++) {
          if (at >= bytes.length || bytes[at] === ESCAPE) return false;
          hash = (Math.imul(hash, 31) + bytes[at]) | 0;
        }
        values[field] = this.words.numberOfBytes(from, at, hash);
        continue;
      }
      let value = 0, digits = -1;
      for (; ; at++) {
        const byte = bytes[at];
        if (byte >= ZERO && byte < ZERO + 10) {
          value = value * 10 + byte - ZERO;
          if (digits >= 0) digits++;
        } else if (byte === POINT && digits < 0) digits = 0;
        else break;
      }
      if (field >= 4 && digits !== 3) return false;
      values[field] = value;
    }
    const end = bytes[at] === CLOSE ? at + 1 : objectEnd(bytes, at, 1);
    if (end < 0) return false;
    this.addSlice(values[2], values[3], values[0], values[1], values[4], values[5], this.at);
    this.at = end;
    return true;
  }

  add(event, place) {
    const words = this.words, pid = whole(event.pid), tid = whole(event.tid), time = nanoseconds(event.ts);
    if (event.ph === "M") this.addNames(event, pid, tid);
    else if (event.ph === "X") {
      const kind = words.number(String(event.cat ?? "")), name = words.number(String(event.name ?? ""));
      this.addSlice(pid, tid, kind, name, time, Math.max(nanoseconds(event.dur), 0), place);
    } else if (event.ph === "i" || event.ph === "I") {
      this.marks.push({ row: this.row(pid, tid), time, text: `${event.cat} ${event.name}` });
      this.count++;
    } else if (event.ph === "C") this.addSamples(event, pid, time);
    else if (event.ph === "s" || event.ph === "f") this.addFlowEnd(event, { row: this.row(pid, tid), time });
  }

  addSlice(pid, tid, kind, name, start, duration, place) {
    const columns = this.row(pid, tid).columns;
    columns[0].push(start);
    columns[1].push(duration);
    columns[2].push(name);
    columns[3].push(kind);
    columns[4].push(place);
    this.count++;
  }

  addNames(event, pid, tid) {
    const given = event.args || {}, process = this.process(pid);
    if (event.name === "process_name") process.name = String(given.name);
    else if (event.name === "process_sort_index") process.order = whole(given.sort_index);
    else if (event.name === "thread_name") this.row(pid, tid).name = String(given.name);
    else if (event.name === "thread_sort_index") this.row(pid, tid).order = whole(given.sort_index);
  }

  addSamples(event, pid, time) {
    for (const [series, value] of Object.entries(event.args || {})) {
      if (typeof value !== "number") continue;
      const key = `${pid} ${event.name} ${series}`;
      if (!this.curves.has(key)) {
        const curve = { process: this.process(pid), name: `${event.name} ${series}`.trim(), samples: [] };
        this.curves.set(key, curve);
      }
      this.curves.get(key).samples.push([time, value]);
      this.count++;
    }
  }

  addFlowEnd(event, end) {
    const other = this.openFlows.get(event.id);
    if (!other) {
      this.openFlows.set(event.id, { phase: event.ph, end });
      return;
    }
    this.openFlows.delete(event.id);
    const [source, target] = event.ph === "f" ? [other.end, end] : [end, other.end];
    this.flows.push({ source, target, isLaunch: LAUNCHES.has(event.name) });
    this.count++;
  }

  process(pid) {
    if (!this.processes.has(pid)) this.processes.set(pid, { name: `process ${pid}`, order: 0 });
    return this.processes.get(pid);
  }

  row(pid, tid) {
    if (this.latest && this.latest.pid === pid && this.latest.tid === tid) return this.latest;
    if (!this.byId.has(pid)) this.byId.set(pid, new Map());
    let row = this.byId.get(pid).get(tid);
    if (!row) {
      const columns = [Float64Array, Float64Array, Uint32Array, Uint32Array, Float64Array];
      row = { pid, tid, name: `thread ${tid}`, order: 0, process: this.process(pid) };
      row.columns = columns.map((kind) => new Column(kind));
      this.byId.get(pid).set(tid, row);
      this.rows.push(row);
    }
    this.latest = row;
    return row;
  }

  // The trace; times count from its first event.
  finish() {
    let first = Infinity;
    for (const row of this.rows) for (const start of row.columns[0].view()) if (start < first) first = start;
    for (const mark of this.marks) first = Math.min(first, mark.time);
    for (const curve of this.curves.values()) for (const [time] of curve.samples) first = Math.min(first, time);
    for (const row of this.rows) {
      row.levels = divideByDepth(row.columns, first);
      row.columns = null;
    }
    for (const mark of this.marks) mark.time -= first;
    for (const flow of this.flows) { flow.source.time -= first; flow.target.time -= first; }
    this.flows.sort((one, other) => one.source.time - other.source.time);
    const rows = this.rows.filter((row) => row.levels.length);
    rows.sort((one, other) => one.process.order - other.process.order || one.order - other.order);
    let end = 1;
    for (const row of rows) for (const level of row.levels) end = Math.max(end, level.ends[level.ends.length - 1]);
    return {
      bytes: this.bytes, words: this.words.texts, rows, marks: this.marks, flows: this.flows, end, count: this.count,
      isComplete: this.isComplete, curves: [...this.curves.values()].map((curve) => finishCurve(curve, first)),
    };
  }
}

function finishCurve(curve, first) {
  curve.samples.sort((one, other) => one[0] - other[0]);
  const times = Float64Array.from(curve.samples, ([time]) => time - first);
  const values = Float64Array.from(curve.samples, ([, value]) => value);
  const top = values.reduce((most, value) => Math.max(most, value), 0) || 1;
  return { process: curve.process, name: curve.name, times, values, top };
}

const whole = (value) => (Number.isInteger(value) ? value : 0);
const nanoseconds = (microseconds) => (typeof microseconds === "number" ? Math.round(microseconds * 1000) : 0);

// An event with its details, which are read on request.
function parseEvent(bytes, at) {
  return JSON.parse(new TextDecoder().decode(bytes.subarray(at, objectEnd(bytes, at))));
}

function kindOf(trace, level, at) {
  const kind = trace.words[level.kinds[at]];
  return KINDS[kind] || kind;
}

// The start of the first op or program; the page opens there.
function firstOp(trace) {
  const wanted = trace.words.map((word) => word === "cpu_op" || word === "program" || word in KINDS);
  let first = trace.end;
  for (const row of trace.rows) for (const level of row.levels) {
    const at = level.kinds.findIndex((kind) => wanted[kind]);
    if (at >= 0) first = Math.min(first, level.starts[at]);
  }
  return first < trace.end ? first : 0;
}
