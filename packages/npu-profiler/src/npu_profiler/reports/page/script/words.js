// Formats numbers for people.

function formatTime(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return `${(ns / 1e9).toFixed(3)} s`;
  if (size >= 1e6) return `${(ns / 1e6).toFixed(3)} ms`;
  if (size >= 1e3) return `${(ns / 1e3).toFixed(2)} µs`;
  return `${Math.round(ns)} ns`;
}

function formatBytes(value) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(value) < 1024) return `${value.toFixed(unit === "B" ? 0 : 1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

function formatCount(value) {
  return value.toLocaleString("en");
}
