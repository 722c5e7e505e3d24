"""Finds broken layouts of opened pages by facts, not pixels, so that new text passes.

A page fails if it lost its style sheet, has a hidden or covered heading, has text that is cut off,
or begins with an empty screen; nothing is compared with an earlier picture.
"""

from __future__ import annotations

from playwright.sync_api import Page

__all__ = ["BREAKAGES", "layout_faults"]

# Limits of the first screen: the tallest band without content, and the least share of its height
# with content. The emptiest page, 404, has 0.27 on a desktop.
_TALLEST_BLANK_PX = 180
_LEAST_FILLED = 0.1
# Required content of the landing page's first screen: commands, an answer, platforms, entrances.
_FIRST_SCREEN = {
    "desktop": (".hero pre", "img.terminal", ".runs-on li", ".entrances li"),
    "phone": (".hero pre", "img.terminal"),
}
# Planted faults, by script, and the words of the expected report.
BREAKAGES = {
    "document.querySelectorAll('link[rel=stylesheet]').forEach((one) => one.remove())": "header",
    "document.querySelector('h1').style.display = 'none'": "heading",
    "document.querySelector('h1').style.marginTop = '-200px'": "heading",
    "document.querySelector('h1').style.marginBottom = '400px'": "empty",
    "document.querySelector('.md-content p').style.cssText = "
    "'overflow: hidden; white-space: nowrap'": "cut off",
}
_FACTS = """() => {
  const high = innerHeight, header = document.querySelector(".md-header");
  const below = header ? header.getBoundingClientRect().bottom : 0;
  const inside = (box) => box.width > 0 && box.height > 0
    && box.left >= -1 && box.right <= innerWidth + 1 && box.top >= -1 && box.bottom <= high + 1;
  const seen = (element) => {
    if (!element || !inside(element.getBoundingClientRect())) return false;
    const box = element.getBoundingClientRect();
    const top = document.elementFromPoint(box.left + 8, box.top + box.height / 2);
    return element === top || element.contains(top) || (top && top.contains(element));
  };
  const place = document.querySelector(".md-content"), filled = new Set();
  const fill = (box) => {
    const first = Math.max(0, Math.floor(box.top));
    for (let y = first; y < Math.min(high, box.bottom); y++) filled.add(y);
  };
  const texts = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    if (!texts.currentNode.data.trim()) continue;
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    [...range.getClientRects()].forEach(fill);
  }
  place.querySelectorAll("img, pre").forEach((one) => fill(one.getBoundingClientRect()));
  const goesOn = place.getBoundingClientRect().bottom > high;
  const end = goesOn ? high : Math.max(below, ...filled); // a short page may leave the rest free
  let tallest = 0;
  for (let y = Math.ceil(below), band = 0; y < end; y++) {
    band = filled.has(y) ? 0 : band + 1;
    tallest = Math.max(tallest, band);
  }
  const cut = [...document.querySelectorAll(".md-content *, .md-tabs *")].filter((one) =>
    ["hidden", "clip"].includes(getComputedStyle(one).overflowX) && one.clientWidth > 1
    && one.scrollWidth > one.clientWidth + 1 && one.innerText && one.innerText.trim());
  const heading = document.querySelector("h1");
  return {
    header: seen(header) && header.getBoundingClientRect().height < 140,
    heading: seen(heading) && heading.getBoundingClientRect().top >= below,
    tallest, filled: filled.size / high,
    cut: cut.map((one) => `<${one.localName}> ${one.innerText.slice(0, 30)}`),
  };
}"""
_SHOWN = """(names) => names.filter((name) => {
  const one = document.querySelector(name);
  return !one || one.getBoundingClientRect().bottom > innerHeight + 1;
})"""


def layout_faults(page: Page, kind: str, shape: str) -> list[str]:
    """Returns the faults of an opened page's first screen.

    Args:
        page: the opened page, not scrolled.
        kind: one of `browser.KINDS`; a landing page has more requirements.
        shape: `desktop` or `phone`.
    """
    facts = page.evaluate(_FACTS)
    found = []
    if not facts["header"]:
        found.append("the header is not at the top of the screen")
    if not facts["heading"]:
        found.append("the first heading is not in sight")
    if facts["tallest"] > _TALLEST_BLANK_PX:
        found.append(f"{facts['tallest']} pixels of the first screen are empty")
    if facts["filled"] < _LEAST_FILLED:
        found.append(f"text and pictures fill {facts['filled']:.0%} of an empty first screen")
    found += [f"text is cut off: {one}" for one in facts["cut"]]
    if kind == "landing":
        missing = page.evaluate(_SHOWN, list(_FIRST_SCREEN[shape]))
        found += [f"{name} is not on the first screen" for name in missing]
    return found
