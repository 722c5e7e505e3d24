// Causes and effects of a slice: by nesting, and by arrows.

// The slices around one, from the outermost to the slice itself.
function chainOf(picked) {
  const time = picked.level.starts[picked.at], chain = [picked];
  for (let depth = picked.depth - 1; depth >= 0; depth--) {
    const level = picked.row.levels[depth], at = firstAbove(level.starts, time) - 1;
    if (at >= 0) chain.unshift({ row: picked.row, level, depth, at });
  }
  return chain;
}

// The innermost slice of a row at a moment.
function innermost(row, time) {
  let found = null;
  row.levels.forEach((level, depth) => {
    const at = sliceAt(level, time);
    if (at >= 0) found = { row, level, depth, at };
  });
  return found;
}

// The source of an arrow: the slice of its thread, or if it has none, the step of its process.
function causeOf(trace, { row, time }) {
  const own = innermost(row, time);
  if (own) return own;
  for (const other of trace.rows) {
    const found = other.process === row.process && innermost(other, time);
    if (found) return found;
  }
  return null;
}

const isSame = (one, other) => one && other && one.level === other.level && one.at === other.at;

// Arrows that end in a slice or in one around it, and arrows that begin within it.
function arrowsOf(trace, picked) {
  const chain = chainOf(picked), from = picked.level.starts[picked.at], to = picked.level.ends[picked.at];
  const causes = [], effects = [];
  for (const flow of trace.flows) {
    const { source, target } = flow;
    if (flow.isLaunch && source.time >= from && source.time <= to && source.row.process === picked.row.process) {
      if (source.row === picked.row || isSame(causeOf(trace, source), picked)) effects.push(flow);
    }
    if (target.row !== picked.row || target.time > to) continue;
    if (chain.some(({ level, at }) => level.starts[at] <= target.time && target.time <= level.ends[at])) {
      const effect = targetOf(target);
      if (effect && chain.some((one) => isSame(one, effect))) causes.push(flow);
    }
  }
  return { causes, effects };
}

// An arrow ends where a slice begins: in the outermost one that begins there.
function targetOf(target) {
  for (let depth = 0; depth < target.row.levels.length; depth++) {
    const level = target.row.levels[depth], at = sliceAt(level, target.time);
    if (at >= 0 && level.starts[at] === target.time) return { row: target.row, level, depth, at };
  }
  return innermost(target.row, target.time);
}
