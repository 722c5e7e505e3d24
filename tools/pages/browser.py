"""Opens the built pages in headless Chromium: screenshots, accessibility, offline search.

    python tools/pages/browser.py [site] [--pictures DIR]

One page of each kind is opened at 390 and 1,440 pixels, light and dark: no script may fail, every
picture must load, content must fit the screen width, the layout must be intact (layout.py), and
axe-core may find no violation of level A or AA. The checks are first tested on planted faults.
Needs playwright, axe-playwright-python and Chromium: Debian's, or the one that `playwright install
chromium` fetches.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from layout import BREAKAGES, layout_faults
from links import base_path
from playwright.sync_api import Browser, Page, sync_playwright
from search import EXPECTED

__all__ = ["KINDS", "main"]

# One page of each kind with a distinct layout.
KINDS = {
    "landing": "index.html",
    "tutorial": "get-started/first-model.html",
    "guide": "guides/npu-on-linux.html",
    "recipes": "cookbook.html",
    "comparison": "comparison.html",
    "reference": "reference/npu-llm.html",
    "errors": "reference/errors.html",
    "survey": "reference/decoders.html",
    "concept": "concepts/fallback.html",
    "changes": "changes.html",
    "missing": "no/such/page.html",
}
_SIZES = {"desktop": (1440, 900), "phone": (390, 844)}
_SCHEMES = ("light", "dark")
# Queries the theme's search worker with the site's index; returns the pages found.
_ASK = """async ([address, queries]) => {
  const config = JSON.parse(document.getElementById("__config").textContent);
  const worker = new Worker(new URL(config.search, location.href));
  const data = await (await fetch(`${address}/search/search_index.json`)).json();
  const ask = (message) => new Promise((resolve) => {
    worker.onmessage = (event) => resolve(event.data.data);
    worker.postMessage(message);
  });
  await ask({ type: 0, data: { ...data, options: { suggest: false } } });
  const answers = [];
  for (const query of queries) {
    const found = await ask({ type: 2, data: query });
    answers.push(found.items.map((page) => page[0].location.split("#")[0]));
  }
  return answers;
}"""
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
_PLAYED_MS = 9_000  # duration of a terminal recording
_UNLOADED = "[...document.images].filter((i) => !(i.complete && i.naturalWidth)).map((i) => i.src)"
_WIDTH = "document.documentElement.scrollWidth"
_PLANTED = """() => {
  const place = document.querySelector(".md-content__inner");
  place.insertAdjacentHTML("beforeend", `<p style="color: #ccc; background: #fff">pale</p>
    <img src="no-such-picture.png"><div style="width: 3000px; height: 1px"></div>`);
}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a built site in a browser; 1, and a line for each fault, where it has any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("site", type=Path, nargs="?", default=Path("site"))
    parser.add_argument("--pictures", type=Path, help="where screenshots are written")
    options = parser.parse_args(arguments)
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, _served(options.site) as address:
        # Containers have no sandbox.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        print(f"Chromium {browser.version}")
        faults = _faults_not_noticed(browser, address)
        for kind in KINDS:
            faults += _check_kind(browser, address, kind, options.pictures)
        faults += _search_from_disk(browser, options.site.resolve(), options.pictures)
        faults += _words_not_found(browser, address)
        browser.close()
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(KINDS)} kinds of pages, 390 and 1440 px, light and dark: {len(faults)} faults")
    return 1 if faults else 0


@contextmanager
def _opened(
    browser: Browser, where: str, size: tuple[int, int], scheme: str, errors: list[str]
) -> Iterator[Page]:
    """Opens a page; script errors are added to `errors`."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
        offline=where.startswith("file:"),
    )
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(f"{where}: {error}"))
    page.goto(where, wait_until="load")
    yield page
    context.close()


def _check_kind(browser: Browser, address: str, kind: str, pictures: Path | None) -> list[str]:
    faults: list[str] = []
    for (shape, size), scheme in product(_SIZES.items(), _SCHEMES):
        name = f"{kind}-{shape}-{scheme}"
        with _opened(browser, f"{address}/{KINDS[kind]}", size, scheme, faults) as page:
            found = [*layout_faults(page, kind, shape), *_faults_of(page, size[0])]
            faults += [f"{name}: {one}" for one in found]
            if pictures:
                if page.locator("img.terminal").count():
                    page.wait_for_timeout(_PLAYED_MS)
                page.screenshot(path=pictures / f"{name}.png")
    print(f"{kind}: {KINDS[kind]}, {len(faults)} faults")
    return faults


def _faults_of(page: Page, width: int) -> list[str]:
    """Returns faults of an opened page: pictures, width, accessibility."""
    found = [f"{source} did not load" for source in page.evaluate(_UNLOADED)]
    taken = page.evaluate(_WIDTH)
    if taken > width:
        found.append(f"{taken} pixels wide on a screen of {width}")
    audited: dict[str, Any] = Axe().run(page, options={"runOnly": _RULES}).response
    for rule in audited["violations"]:
        places = [" ".join(map(str, node["target"])) for node in rule["nodes"]]
        found += [f"axe {rule['id']}: {place}: {rule['help']}" for place in places]
    return found


def _faults_not_noticed(browser: Browser, address: str) -> list[str]:
    """Plant a missing picture without alt text, pale words, a wide line, and broken layouts."""
    errors: list[str] = []
    size, where = _SIZES["phone"], f"{address}/{KINDS['guide']}"
    with _opened(browser, where, size, "light", errors) as page:
        page.evaluate(_PLANTED)
        page.wait_for_function("[...document.images].every((image) => image.complete)")
        found = "\n".join(_faults_of(page, size[0]))
    planted = ("did not load", "pixels wide", "axe image-alt", "axe color-contrast")
    unnoticed = [one for one in planted if one not in found]
    for script, told in BREAKAGES.items():
        with _opened(browser, where, size, "light", errors) as page:
            page.evaluate(script)
            if not any(told in fault for fault in layout_faults(page, "guide", "phone")):
                unnoticed.append(script)
    count = len(planted) + len(BREAKAGES)
    print(f"planted faults: {count - len(unnoticed)} of {count} noticed")
    return errors + [f"planted, and not noticed: {one}" for one in unnoticed]


def _search_from_disk(browser: Browser, site: Path, pictures: Path | None) -> list[str]:
    """Searches on a page opened from disk, and follows the first result."""
    faults: list[str] = []
    where = (site / KINDS["guide"]).as_uri()
    for (shape, size), scheme in product(_SIZES.items(), _SCHEMES):
        name = f"search-{shape}-{scheme}"
        with _opened(browser, where, size, scheme, faults) as page:
            if shape == "phone":
                page.locator("label[for=__search]").first.click()
            page.locator("[data-md-component=search-query]").click()
            page.keyboard.type("kernel programs")
            result = page.locator(".md-search-result__link").first
            result.wait_for(timeout=20_000)
            page.wait_for_timeout(500)  # the list fades in, and low contrast is a violation
            faults += [f"{name}: {one}" for one in _faults_of(page, size[0])]
            if pictures:
                page.screenshot(path=pictures / f"{name}.png")
            result.click()
            page.wait_for_url("**/kernel-programs.html*")
            title = page.locator("h1").inner_text()
            print(f"{name}, from disk: typed, found, opened {title.rstrip('¶')!r}")
    return faults


def _words_not_found(browser: Browser, address: str) -> list[str]:
    """Searches for words of the field; each must find its page in the first three."""
    faults: list[str] = []
    with _opened(browser, f"{address}/index.html", _SIZES["desktop"], "light", faults) as page:
        answers = page.evaluate(_ASK, [address, list(EXPECTED)])
    for (words, expected), found in zip(EXPECTED.items(), answers, strict=True):
        if expected.replace(".md", ".html") not in found[:3]:
            faults.append(f"search {words!r}: {expected} is not among {', '.join(found[:3])}")
    print(f"search: {len(EXPECTED)} words of the field, {len(faults)} without their page")
    return faults


@contextmanager
def _served(site: Path) -> Iterator[str]:
    """Serves the site on a local port, with its own 404 page."""
    base = base_path(site)
    handler = partial(_Pages, directory=str(site), base=base)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{base.rstrip('/')}"
        finally:
            server.shutdown()
            thread.join()


class _Pages(SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, base: str, **options: Any) -> None:
        self.base = base
        super().__init__(*arguments, **options)

    def translate_path(self, path: str) -> str:
        return super().translate_path("/" + path.removeprefix(self.base))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        missing = Path(self.directory) / "404.html"
        if code != 404 or not missing.is_file():
            super().send_error(code, message, explain)
            return
        self.send_response(404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(missing.read_bytes())

    def log_request(self, *_: object) -> None:
        """Suppresses the request log."""


if __name__ == "__main__":
    sys.exit(main())
