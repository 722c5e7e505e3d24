// Actions of keys, the pointer and the buttons.

function listen(page, drawing) {
  const canvas = drawing.canvas, scroll = byId("scroll"), tip = byId("tip");
  const fingers = new Map(); // positions of pressed pointers
  let drag = null, pointer = null;
  const middle = () => (pointer === null ? (page.view.from + page.view.to) / 2 : drawing.timeAt(pointer));

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, event.offsetX);
    if (fingers.size === 2) { drag = null; return; }
    drag = { x: event.offsetX, y: event.offsetY, top: scroll.scrollTop, ...page.view, isRange: event.shiftKey, moved: false };
    tip.hidden = true;
  });
  canvas.addEventListener("pointermove", (event) => {
    pointer = event.offsetX < drawing.left ? null : event.offsetX;
    if (fingers.size === 2 && fingers.has(event.pointerId)) return pinch(event);
    if (!drag) return showTip(event);
    drag.moved = drag.moved || Math.abs(event.offsetX - drag.x) > 3 || Math.abs(event.offsetY - drag.y) > 3;
    if (drag.isRange) {
      const ends = [drawing.timeAt(drag.x), drawing.timeAt(event.offsetX)].sort((one, other) => one - other);
      page.chooseRange(ends[0], ends[1], rowsBetween(drag.y, event.offsetY));
    } else {
      const time = (event.offsetX - drag.x) / (drawing.width - drawing.left) * (drag.to - drag.from);
      scroll.scrollTop = drag.top - (event.offsetY - drag.y);
      page.show(drag.from - time, drag.to - time);
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    fingers.delete(event.pointerId);
    if (drag && !drag.moved) click(drawing.hit(event.offsetX, event.offsetY));
    else if (drag && drag.isRange) page.sumUp();
    drag = null;
  });
  canvas.addEventListener("pointercancel", (event) => { fingers.delete(event.pointerId); drag = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; pointer = null; });
  canvas.addEventListener("dblclick", (event) => {
    const found = drawing.hit(event.offsetX, event.offsetY);
    if (found && found.slice) { page.pick(found.slice); page.fit(); }
  });
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) { event.preventDefault(); page.zoom(event.deltaY > 0 ? 1.25 : .8, drawing.timeAt(event.offsetX)); }
    else if (event.deltaX) { event.preventDefault(); page.pan(event.deltaX / drawing.width); }
  }, { passive: false });
  scroll.addEventListener("scroll", () => page.redraw());

  // Two fingers: the points under them stay there.
  function pinch(event) {
    const before = [...fingers.values()], times = before.map((x) => drawing.timeAt(x));
    fingers.set(event.pointerId, event.offsetX);
    const after = [...fingers.values()], distance = after[1] - after[0];
    if (Math.abs(distance) < 10 || Math.abs(before[1] - before[0]) < 10) return;
    const perPixel = (times[1] - times[0]) / distance, from = times[0] - (after[0] - drawing.left) * perPixel;
    if (perPixel > 0) page.show(from, from + perPixel * (drawing.width - drawing.left));
  }
  function click(found) {
    if (found && found.isLabel) page.pin(found.lane);
    else if (found && found.slice) page.pick(found.slice);
    else { page.pick(null); showText(found && found.text ? found.text : ""); }
  }
  function rowsBetween(one, other) {
    const top = Math.min(one, other), bottom = Math.max(one, other);
    return drawing.placed.places.filter(({ lane, y }) => lane.row && y < bottom && y + lane.height > top).map(({ lane }) => lane.row);
  }
  function showTip(event) {
    const found = drawing.hit(event.offsetX, event.offsetY);
    const text = found && (found.text || (found.slice && sliceText(page.trace, found.slice)) || (found.isLabel && `${found.lane.title}: ${found.lane.pin ? "let go" : "pin"}`));
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = `${Math.max(Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8), 0)}px`;
    tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
  }

  const keys = {
    w: () => page.zoom(.7, middle()), s: () => page.zoom(1.4, middle()), a: () => page.pan(-.2), d: () => page.pan(.2),
    ArrowLeft: () => page.pan(-.2), ArrowRight: () => page.pan(.2), f: () => page.fit(), 0: () => page.showAll(),
    m: () => page.markPicked(), r: () => page.markView(), p: () => page.pinPicked(),
    ArrowUp: () => page.climb(-1), ArrowDown: () => page.climb(1), ",": () => page.step(-1), ".": () => page.step(1),
    n: () => page.jump(1), N: () => page.jump(-1),
    "/": () => byId("search").focus(), "?": () => byId("help").showModal(),
    Escape: () => { page.pick(null); page.chooseRange(0, 0, []); showText(""); },
  };
  addEventListener("keydown", (event) => {
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    const key = event.key in keys ? event.key : event.key.toLowerCase();
    if (!(key in keys) || (/^Arrow(Up|Down)$/.test(key) && !page.picked)) return;
    event.preventDefault();
    keys[key]();
  });
  const buttons = { in: keys.w, out: keys.s, fit: keys.f, all: keys[0], next: keys.n, previous: keys.N, help: keys["?"] };
  addEventListener("click", (event) => {
    const action = event.target.dataset && event.target.dataset.do;
    if (action) buttons[action]();
  });
  byId("search").addEventListener("input", (event) => page.search(event.target.value.trim()));
  byId("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") page.jump(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") { event.target.value = ""; page.search(""); canvas.focus(); }
  });
  new ResizeObserver(() => page.resize()).observe(scroll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawing.readStyle(); page.redraw(); });
}
