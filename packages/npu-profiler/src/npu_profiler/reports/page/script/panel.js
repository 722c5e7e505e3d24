// The texts next to the timeline: the selection, the chosen range, the summary, the tables.

const byId = (id) => document.getElementById(id);

function element(name, text = "", values = {}) {
  const made = Object.assign(document.createElement(name), values);
  if (text) made.textContent = text;
  return made;
}

function sliceText(trace, { row, level, at }) {
  const time = formatTime(level.ends[at] - level.starts[at]);
  return `${trace.words[level.names[at]]}\n${time} from ${formatTime(level.starts[at])} in ${row.process.name}, ${row.name}`;
}

// Details of a slice, and its way from Python to the op to the program: each is a button that
// selects it.
function showSlice(trace, picked, arrows, pick) {
  const { level, at } = picked, given = parseEvent(trace.bytes, level.places[at]).args || {};
  const lines = [`kind: ${kindOf(trace, level, at)}`];
  const outside = outsideLayers(picked);
  if (outside !== null && kindOf(trace, level, at) === "program") lines.push(`outside of its layers: ${formatTime(outside)}`);
  for (const [key, value] of Object.entries(given)) if (value !== "" && value !== null) lines.push(`${key}: ${typeof value === "object" ? JSON.stringify(value) : value}`);
  const way = element("ol", "", { className: "way" });
  const add = (title, slice) => {
    const item = element("li"), button = element("button", `${title}${trace.words[slice.level.names[slice.at]]}`);
    button.onclick = () => pick(slice);
    if (isSame(slice, picked)) button.setAttribute("aria-current", "true");
    item.append(button);
    way.append(item);
  };
  for (const { source } of arrows.causes.slice(0, 3)) {
    const cause = causeOf(trace, source);
    if (cause) for (const slice of chainOf(cause).slice(-4)) add("", slice);
  }
  for (const slice of chainOf(picked)) add("", slice);
  const effects = arrows.effects.map(({ target }) => targetOf(target)).filter(Boolean);
  for (const slice of effects.slice(0, 10)) add("→ ", slice);
  if (effects.length > 10) way.append(element("li", `and ${formatCount(effects.length - 10)} more programs`));
  byId("picked").replaceChildren(element("pre", `${sliceText(trace, picked)}\n${lines.join("\n")}`), element("h3", "from Python to the program"), way);
}

// The time of a slice outside its inner slices; null without inner slices.
function outsideLayers({ row, level, depth, at }) {
  const inner = row.levels[depth + 1], from = level.starts[at], to = level.ends[at];
  if (!inner) return null;
  let own = to - from, count = 0;
  for (let i = firstAbove(inner.ends, from); i < inner.starts.length && inner.starts[i] < to; i++, count++) own -= inner.ends[i] - inner.starts[i];
  return count ? own : null;
}

function showText(text) {
  byId("picked").replaceChildren(element("pre", text));
}

function showSums(trace, rows, range, sums) {
  const shown = sums.slice(0, 200), where = rows.length === 1 ? rows[0].name : `${rows.length} rows`;
  const title = `${formatTime(range.to - range.from)} from ${formatTime(range.from)} in ${where}; of a slice that reaches beyond, the part inside`;
  const columns = [["name", "text"], ["count", "count"], ["total ms", "ns"], ["mean ms", "ns"]];
  const cells = shown.map(({ name, count, total, mean }) => [name, count, total, mean]);
  const more = sums.length - shown.length;
  byId("picked").replaceChildren(makeTable({ title: more ? `${title} (the first 200 of ${formatCount(sums.length)})` : title, columns, rows: cells }));
}

function cellText(value, unit) {
  if (value === null || value === undefined) return "-";
  if (unit === "ns") return (value / 1e6).toFixed(value >= 1e8 ? 1 : 3);
  if (unit === "share") return `${(value * 100).toFixed(1)} %`;
  if (unit === "bytes") return formatBytes(value);
  if (unit === "count") return formatCount(value);
  if (unit === "number") return Number(value).toPrecision(4);
  return String(value);
}

function makeTable({ title, columns, rows }, order = { column: -1, falling: true }) {
  const table = element("table"), sign = order.falling ? -1 : 1, by = order.column;
  table.append(element("caption", title));
  const head = table.createTHead().insertRow(), body = table.createTBody();
  columns.forEach(([name, unit], column) => {
    const cell = element("th", "", { scope: "col", className: unit === "text" ? "text" : "" });
    const button = element("button", name + (by === column ? (order.falling ? " ↓" : " ↑") : ""));
    button.onclick = () => table.replaceWith(makeTable({ title, columns, rows }, { column, falling: by === column ? !order.falling : unit !== "text" }));
    if (by === column) cell.setAttribute("aria-sort", order.falling ? "descending" : "ascending");
    cell.append(button);
    head.append(cell);
  });
  const compare = (one, other) => (one[by] === other[by] ? 0 : one[by] === null ? 1 : other[by] === null ? -1 : one[by] < other[by] ? -sign : sign);
  for (const row of by < 0 ? rows : [...rows].sort(compare)) {
    const line = body.insertRow();
    row.forEach((value, column) => {
      const unit = columns[column][1], cell = line.insertCell();
      const text = cellText(value, unit);
      cell.append(...(unit === "text" ? breakable(text) : [text]));
      cell.className = unit === "text" ? "text" : "";
    });
  }
  return table;
}

// A text that may break between the parts of a name: "model.layers.26.mlp", "aten::new_zeros".
function breakable(text) {
  return text.split(/(?<=[.:/_+-])(?=\w)/).flatMap((part, at) => (at ? [document.createElement("wbr"), part] : [part]));
}

// The summary and the tables, which npu-profiler computes.
function showReport(report) {
  byId("summary").replaceChildren(...report.summary.flatMap((line) => {
    const [, title, text] = /^(\S.*?):\s+(.*)$/.exec(line) || [null, "", line];
    return title ? [element("dt", title), element("dd", text)] : [element("dd", line.trim(), { className: "more" })];
  }));
  const tabs = byId("tabs"), place = byId("table");
  for (const [name, table] of Object.entries(report.tables)) {
    const button = element("button", name);
    button.setAttribute("aria-pressed", "false");
    button.onclick = () => {
      for (const other of tabs.children) other.setAttribute("aria-pressed", String(other === button));
      place.replaceChildren(makeTable(table));
    };
    tabs.append(button);
  }
  if (tabs.firstElementChild) tabs.firstElementChild.click();
}
