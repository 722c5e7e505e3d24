"""Drives the page of a trace in headless Chromium: keys, search, sums, speed, accessibility.

    python packages/npu-profiler/tests/load/page.py [--pictures docs/assets] [--megabytes 200]

`recorded.json.gz`, a language model's answer of twelve tokens, and `estimated.json.gz`, a
compiler's schedule of the guide's vision transformer, are opened from disk without a network; a
trace of 200 MB is written and served. Needs playwright, axe-playwright-python and Chromium:
Debian's, or the one that `playwright install chromium` fetches.
"""

from __future__ import annotations

import argparse
import base64
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from large_trace import write_large_trace
from playwright.sync_api import Browser, Page, sync_playwright

RECORDED = Path(__file__).with_name("recorded.json.gz")
ESTIMATED = Path(__file__).with_name("estimated.json.gz")
DESKTOP, PHONE = (1440, 900), (390, 844)
MOST_S, MOST_MS, MOST_SUMS_MS = 5.0, 100.0, 500.0
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
VIEW = "[page.view.from, page.view.to]"
PICKED = "page.picked && page.trace.words[page.picked.level.names[page.picked.at]]"
# The start of the selection on the screen.
PLACE = """(() => {
  const { row, level, at } = page.picked, box = page.drawing.canvas.getBoundingClientRect();
  const { x, y } = page.drawing.point(row, level.starts[at], true);
  return [x + box.x, y + box.y];
})()"""
SIZE = "page.picked.level.ends[page.picked.at] - page.picked.level.starts[page.picked.at]"
PINNED = "page.lanes.filter((lane) => lane.pin === 'above').map((lane) => lane.title)"
# Two fingers, 200 pixels apart, then 400.
PINCH = """() => {
  const box = page.drawing.canvas.getBoundingClientRect();
  page.drawing.canvas.setPointerCapture = () => {};
  const touch = (kind, pointerId, x) => page.drawing.canvas.dispatchEvent(
    new PointerEvent(kind, { pointerId, clientX: box.x + x, clientY: box.y + 60, bubbles: true }));
  touch("pointerdown", 11, 400);
  touch("pointerdown", 12, 600);
  touch("pointermove", 12, 800);
  touch("pointerup", 11, 400);
  touch("pointerup", 12, 800);
}"""
# A change and the drawing after it, which is over when a pixel can be read; the longest of each.
MEASURE = """() => {
  const longest = {};
  const timed = (name, change) => {
    const start = performance.now();
    change();
    page.drawing.draw();
    page.drawing.pen.getImageData(0, 0, 1, 1);
    longest[name] = Math.max(longest[name] || 0, performance.now() - start);
  };
  const middle = () => (page.view.from + page.view.to) / 2;
  for (let i = 0; i < 80; i++) timed("zoom", () => page.zoom(i < 40 ? .7 : 1.4, middle()));
  timed("whole trace", () => page.showAll());
  for (const text of ["l", "linear", "softmax", "none"]) timed("search", () => page.search(text));
  page.search("softmax");
  for (let i = 0; i < 20; i++) timed("jump", () => page.jump(1));
  page.search("");
  page.showAll();
  timed("sums of everything", () => page.markView());
  return longest;
}"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, help="where screenshots are written")
    parser.add_argument("--megabytes", type=int, default=200, help="of the large trace")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        flags = ["--no-sandbox"]  # in a container there is none to be had
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        print(f"Chromium {browser.version}")
        page_file = write_page(RECORDED, Path(folder), "answer")
        estimate = write_page(ESTIMATED, Path(folder), "estimate")
        check_keys(browser, page_file)
        check_pointer(browser, page_file)
        check_access(browser, page_file)
        check_estimate(browser, estimate)
        check_narrow(browser, Path(folder))
        if options.pictures:
            take_pictures(browser, page_file, estimate, options.pictures)
        check_failure(browser, Path(folder))
        measure(browser, Path(folder), options.megabytes)
        browser.close()
    return 0


def write_page(trace: Path, folder: Path, name: str) -> Path:
    shutil.copy(trace, folder / f"{name}.json.gz")
    page = folder / f"{name}.html"
    command = [sys.executable, "-m", "npu_profiler", "view", f"{name}.json.gz", "-o", page]
    subprocess.run(command, cwd=folder, check=True)
    return page


@contextmanager
def opened(
    browser: Browser, where: str, size: tuple[int, int] = DESKTOP, scheme: str = "light"
) -> Iterator[Page]:
    """A page that shows everything; fails on any error of its scripts."""
    viewport = {"width": size[0], "height": size[1]}
    is_file = where.startswith("file:")
    context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=is_file)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(where, wait_until="commit")
    page.wait_for_selector("html[data-ready]", timeout=60_000)
    yield page
    context.close()
    assert errors == [], errors


def check_keys(browser: Browser, file: Path) -> None:
    with opened(browser, file.as_uri()) as page:
        assert "events" in page.text_content("#state")
        breaks = "document.querySelectorAll('#table td{} wbr').length"
        assert page.evaluate(breaks.format(".text")), "names break between their parts"
        assert not page.evaluate(breaks.format(":not(.text)")), "numbers do not break"
        first, end = page.evaluate("[firstOp(page.trace), page.trace.end]")
        begin, _ = page.evaluate(VIEW)
        assert first - (end - first) * 0.03 < begin < first, "opens on the first op"
        imports = page.evaluate("page.trace.words.filter((word) => word.startsWith('import '))")
        assert "import torch" in imports
        page.keyboard.press("w")
        narrow = page.evaluate(VIEW)
        assert narrow[1] - narrow[0] < end - first, "w zooms in"
        page.keyboard.press("d")
        assert page.evaluate(VIEW)[0] > narrow[0], "d pans"
        page.keyboard.press("a")
        page.keyboard.press("s")
        page.keyboard.press("/")
        page.keyboard.type("import torch")
        page.keyboard.press("Enter")
        assert page.evaluate(PICKED) == "import torch"
        assert page.evaluate("page.view.from") < first, "a match jumps to its time"
        assert "import npu_runtime" in page.text_content("#picked"), "what is around it is told"
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        assert page.evaluate(PICKED) is None
        page.fill("#search", "SmolLM2")
        page.press("#search", "Enter")
        page.locator("#canvas").focus()
        page.keyboard.press("f")
        start, stop = page.evaluate(VIEW)
        size = page.evaluate(SIZE)
        assert size < stop - start < size * 1.3, "f fits what is picked"
        page.keyboard.press("m")
        sums = page.locator("#picked tbody tr").first.locator("td").all_text_contents()
        assert sums[:2] == ["SmolLM2-135M-Instruct.Q4_1", "1"], "m sums up what ran in it"
        assert abs(float(sums[2]) * 1e6 - size) < 1e5
        page.keyboard.press("ArrowDown")
        assert page.evaluate("page.picked.depth") == 1, "down leads to the first layer"
        page.keyboard.press("ArrowUp")
        assert page.evaluate(PICKED) == "SmolLM2-135M-Instruct.Q4_1"
        page.keyboard.press("0")
        page.keyboard.press(".")
        page.keyboard.press("p")
        assert page.evaluate(PINNED) == ["programs"]
        page.keyboard.press("Escape")
        page.keyboard.press(".")
        assert page.evaluate(PICKED) == "prefill 36 tokens", "a key picks the first in sight"
        page.keyboard.press("?")
        assert page.locator("#help").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("#help").is_visible()
    print("keys: zoom, pan, fit, mark, pin, search and its jump, help")


def check_pointer(browser: Browser, file: Path) -> None:
    with opened(browser, file.as_uri()) as page:
        page.evaluate("page.search('SmolLM2'); page.jump(1); page.fit(); page.drawing.draw()")
        x, y = page.evaluate(PLACE)
        page.keyboard.press("Escape")
        page.mouse.click(x + 40, y)
        assert "SmolLM2" in page.evaluate(PICKED), "a click picks"
        way = page.locator("#picked .way button").all_text_contents()
        assert len(way) > 1, "the way from Python to the program is told"
        page.locator("#picked .way button").first.click()
        assert page.evaluate(PICKED) == way[0], "and leads there"
        page.keyboard.down("Shift")
        page.mouse.move(300, y - 60)
        page.mouse.down()
        page.mouse.move(700, y + 30, steps=4)
        page.mouse.up()
        page.keyboard.up("Shift")
        heads = page.locator("#picked thead th").all_text_contents()
        assert heads == ["name", "count", "total ms", "mean ms"], "a range has sums"
        rows = page.locator("#picked tbody tr").count()
        assert rows > 1
        page.locator("summary").click()
        label = page.locator("#rows label").first
        label.click()
        assert page.evaluate(PINNED) == ["prefill and decode"], "a row is pinned"
        before = page.evaluate(VIEW)
        page.evaluate(PINCH)
        after = page.evaluate(VIEW)
        assert abs((after[1] - after[0]) * 2 - (before[1] - before[0])) < 2, "two fingers zoom"
        before = after
        page.mouse.move(600, 400)
        page.mouse.down()
        page.mouse.move(500, 400, steps=3)
        page.mouse.up()
        assert page.evaluate(VIEW)[0] > before[0], "dragging pans"
    print("pointer: pick, way to the program, range with sums, pin, drag")


def check_access(browser: Browser, file: Path) -> None:
    for size in (DESKTOP, PHONE):
        for scheme in ("light", "dark"):
            with opened(browser, file.as_uri(), size, scheme) as page:
                page.wait_for_selector("html[data-ready=all]")
                assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
                page.evaluate("page.search('SmolLM2'); page.jump(1)")
                audit(page)
                page.keyboard.press("m")
                page.keyboard.press("?")
                audit(page)
    print("axe-core: no violation of level A or AA at 390 and 1440 px, light and dark")


def audit(page: Page) -> None:
    found = Axe().run(page, options={"runOnly": RULES})
    assert found.violations_count == 0, found.generate_report()


def check_estimate(browser: Browser, file: Path) -> None:
    note = "the compiler's estimate, not a measurement"
    with opened(browser, file.as_uri()) as page:
        page.wait_for_selector("html[data-ready=all]")
        titles = page.evaluate("page.lanes.map((lane) => lane.title)")
        assert titles[:3] == [f"npu:0 ({note})", "programs", "DPU"], titles
        assert {"DMA 0 DDR", "DMA 1 DDR", "SHAVE"} <= set(titles), titles
        assert note in page.text_content("#summary")
        for tab in page.locator("#tabs button").all():
            tab.click()
            assert note in page.text_content("#table caption"), tab.text_content()
        page.evaluate("page.search('scaled_dot_product_attention'); page.jump(1); page.jump(1)")
        assert "line: vision.py:21" in page.text_content("#picked")
    print("an estimate: rows of engines, and labels at them, in the summary and at each table")


def check_narrow(browser: Browser, folder: Path) -> None:
    """A wide slice is drawn also where it begins in the pixels of a narrow one."""
    trace = folder / "narrow.json"
    event = '{{"ph":"X","cat":"cpu_op","name":"{}","pid":1,"tid":1,"ts":{},"dur":{}}}'
    events = [event.format("a", 0, 0.001), event.format("b", 0.001, 1000)]
    trace.write_text(f'{{"traceEvents":[{",".join(events)}]}}')
    pixel = """(() => {
      const { drawing } = page, { y } = drawing.point(page.trace.rows[0], 500_000, true);
      drawing.draw();
      const at = [drawing.x(900_000), y].map((one) => Math.floor(one * window.devicePixelRatio));
      return [...drawing.pen.getImageData(...at, 1, 1).data];
    })()"""
    with served(trace) as address, opened(browser, address) as page:
        assert page.evaluate(pixel)[3] == 255, "nothing is drawn there"
    print("a wide slice after a narrow one is drawn")


def check_failure(browser: Browser, folder: Path) -> None:
    """The readable part of a damaged trace is drawn, and missing results are reported."""
    trace = folder / "damaged.json"
    event = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":2}'
    trace.write_text(f'{{"traceEvents":[{event}, 5]}}')
    with served(trace) as address, opened(browser, address) as page:
        page.wait_for_selector("html[data-ready=all]")
        assert page.text_content("#state") == "1 events"
        assert "[trace-invalid]" in page.text_content("#summary")
    print("a damaged trace: drawn as far as it goes, and why there is no summary")


SECOND_RUN = "page.search('SmolLM2'); page.jump(1); page.jump(1); page.search('')"
# The longest part of a block's attention and its surroundings, with the table of layers.
ATTENTION = """
  const row = page.trace.rows[0], level = row.levels[1], { starts, ends, names } = level;
  const size = (at) => ends[at] - starts[at], text = (at) => page.trace.words[names[at]];
  const parts = [...names.keys()].filter((at) => text(at).includes("attention_2"));
  const at = parts.reduce((one, other) => size(one) > size(other) ? one : other);
  page.pick({ row, level, depth: 1, at });
  page.show(starts[at] - 90_000, ends[at] + 130_000);
  [...document.querySelectorAll('#tabs button')].pop().click();
"""


def take_pictures(browser: Browser, file: Path, estimate: Path, folder: Path) -> None:
    """The screenshots of the guides."""
    for name, shown, size, scheme, script in (
        ("profiler-page", file, DESKTOP, "light", SECOND_RUN),
        ("profiler-page-dark", file, DESKTOP, "dark", "page.markView()"),
        ("profiler-page-phone", file, PHONE, "light", SECOND_RUN),
        ("estimate-page", estimate, DESKTOP, "light", ATTENTION),
    ):
        with opened(browser, shown.as_uri(), size, scheme) as page:
            page.wait_for_selector("html[data-ready=all]")
            page.evaluate(f"{{{script}}}")
            page.wait_for_timeout(200)
            session = page.context.new_cdp_session(page)
            picture = session.send("Page.captureScreenshot", {"format": "webp", "quality": 70})
            (folder / f"{name}.webp").write_bytes(base64.b64decode(picture["data"]))
            print(f"wrote {folder / name}.webp")


def measure(browser: Browser, folder: Path, megabytes: int) -> None:
    trace = folder / "large.json"
    count = write_large_trace(trace, megabytes * 1_000_000)
    print(f"large trace: {trace.stat().st_size / 1e6:.1f} MB, {count:,} events")
    with served(trace) as address:
        begin_s = time.monotonic()
        with opened(browser, address) as page:
            taken_s = time.monotonic() - begin_s
            assert f"{count:,} events" in page.text_content("#state")
            longest = page.evaluate(MEASURE)
    print(f"served: drawn after {taken_s:.2f} s (at most {MOST_S:g})")
    print(", ".join(f"{name} {taken:.0f} ms" for name, taken in longest.items()))
    assert taken_s <= MOST_S, taken_s
    assert longest.pop("sums of everything") <= MOST_SUMS_MS
    assert max(longest.values()) <= MOST_MS, longest


@contextmanager
def served(trace: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "npu_profiler", "view", trace]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        yield found[0]
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
