"""Checks every link, anchor, picture and script of the built pages.

    python tools/pages/links.py [site] [--external]

Addresses on other hosts are not requested; `--external` lists these. mkdocs checks only links in
Markdown; this tool also checks links of the theme, of templates and of docstrings.
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

# The 404 page is shown at any address, so its links are absolute: below the site's.
_CANONICAL = re.compile(r'<link rel="canonical" href="https?://[^/]+(/.*?)index\.html">')
_BASE = re.compile(r'"base": "(/[^"]*[^/"])"')  # of a page's scripts, relative to it
_ADDRESSES = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src"}


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The result of a check.

    Attributes:
        pages: number of pages.
        links: number of addresses within the site.
        external: addresses of other hosts, each once, sorted.
        broken: a sentence per fault, in page order.
    """

    pages: int
    links: int
    external: list[str]
    broken: list[str]


@dataclass
class _Page(HTMLParser):
    """Links and anchors of a page."""

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
    """Reads every page below a folder, and follows its links within it."""
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
    """Returns the path of the site's first page on its host, such as `/docs/`; `/` if unknown."""
    home = site / "index.html"
    found = _CANONICAL.search(home.read_text(encoding="utf-8")) if home.is_file() else None
    return found[1] if found else "/"


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks a built site; returns 1 on faults, or without pages."""
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
    """Returns the file of an address on a page; addresses below `base` are in the site."""
    if not path:
        return page
    target = site / path[len(base) :] if path.startswith(base) else page.parent / path
    target = Path(os.path.normpath(target))
    return target / "index.html" if target.is_dir() else target


if __name__ == "__main__":
    sys.exit(main())
