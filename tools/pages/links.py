"""Walks the built pages: every link, anchor, picture and script that they name must be there.

    python tools/pages/links.py [site] [--external]

Where an address leads to another host, nothing is asked: `--external` lists these. mkdocs sees
links of the Markdown alone; this sees what the reader gets, so also those of the theme, of
templates and of what is made from docstrings.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["Faults", "base_path", "check_site", "main"]

# The page for what is not there is shown at any address, so its own are whole: below the site's.
_CANONICAL = re.compile(r'<link rel="canonical" href="https?://[^/]+(/.*?)index\.html">')
_BASE = re.compile(r'"base": "(/[^"]*[^/"])"')  # of a page's scripts, which look beside it
_ADDRESSES = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src"}


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What a walk found.

    Attributes:
        pages: how many pages were read.
        links: how many addresses within the site were followed.
        external: addresses of other hosts, each once, sorted.
        broken: a sentence for each fault, in the order of the pages.
    """

    pages: int
    links: int
    external: list[str]
    broken: list[str]


@dataclass
class _Page(HTMLParser):
    """What one page names, and what it can be asked for."""

    anchors: set[str] = field(default_factory=set)
    addresses: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        name = values.get("id")
        if name is not None and name in self.anchors:
            self.faults.append(f"two elements have the id {name!r}")
        self.anchors |= {one for one in (name, values.get("name") if tag == "a" else None) if one}
        address = values.get(_ADDRESSES.get(tag, ""))
        if address is not None:
            self.addresses.append(address)
        if tag == "img" and not values.get("alt"):
            self.faults.append(f"the picture {address!r} has no alt text")


def check_site(site: Path) -> Faults:
    """Read every page below a folder, and follow what they name within it."""
    base = base_path(site)
    pages = {file: _read(file) for file in sorted(site.rglob("*.html"))}
    external: set[str] = set()
    broken: list[str] = []
    followed = 0
    for file, page in pages.items():
        where = file.relative_to(site)
        broken += [f"{where}: {fault}" for fault in page.faults]
        if base_of_scripts := _BASE.search(file.read_text(encoding="utf-8")):
            broken.append(f"{where}: no slash ends its scripts' base {base_of_scripts[1]!r}")
        for address in dict.fromkeys(page.addresses):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                external.add(address)
                continue
            followed += 1
            target = _target(site, base, file, unquote(parts.path))
            if not target.is_file():
                broken.append(f"{where}: {address!r} leads to no file")
                continue
            anchor = unquote(parts.fragment)
            if anchor and target in pages and anchor not in pages[target].anchors:
                broken.append(f"{where}: {address!r} leads to no place on that page")
    return Faults(pages=len(pages), links=followed, external=sorted(external), broken=broken)


def base_path(site: Path) -> str:
    """The path of the site's first page on its host, `/docs/` for one; `/` where none is known."""
    home = site / "index.html"
    found = _CANONICAL.search(home.read_text(encoding="utf-8")) if home.is_file() else None
    return found[1] if found else "/"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a built site; 1 where something is broken, or where there is no page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("site", type=Path, nargs="?", default=Path("site"))
    parser.add_argument("--external", action="store_true", help="list addresses of other hosts")
    options = parser.parse_args(arguments)
    found = check_site(options.site)
    if found.pages == 0:
        print(f"{options.site}: no pages. Build them first: nox -s docs.", file=sys.stderr)
        return 1
    for line in found.external if options.external else []:
        print(line)
    for line in found.broken:
        print(line, file=sys.stderr)
    counts = f"{found.pages} pages, {found.links:,} links, {len(found.broken)} broken"
    print(f"{counts}; {len(found.external)} addresses of other hosts were not asked")
    return 1 if found.broken else 0


def _read(file: Path) -> _Page:
    page = _Page()
    page.feed(file.read_text(encoding="utf-8"))
    page.close()
    return page


def _target(site: Path, base: str, page: Path, path: str) -> Path:
    """The file that an address on a page names; what begins with `base` is in the site."""
    if not path:
        return page
    target = site / path[len(base) :] if path.startswith(base) else page.parent / path
    target = Path(os.path.normpath(target))
    return target / "index.html" if target.is_dir() else target


if __name__ == "__main__":
    sys.exit(main())
