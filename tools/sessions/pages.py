"""Sessions about pages: the documentation, and npu-profiler's page."""

from __future__ import annotations

import os
import shutil
import sys

import nox

from sessions.repository import ROOT, group
from sessions.wheels import build_wheels

QUIET_MKDOCS = {"NO_MKDOCS_2_WARNING": "1"}


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation strictly into site/, check its links; or run mkdocs (`-- serve`)."""
    session.install(*group("docs"))
    if session.posargs:
        session.run("mkdocs", *session.posargs, env=QUIET_MKDOCS)
    else:
        _build_site(session)


@nox.session
def site(session: nox.Session) -> None:
    """Build the documentation, check its links, open each kind of page in headless Chromium.

    The search is tried from disk. `-- --pictures DIR` keeps the screenshots.
    """
    session.install(*group("docs"), *group("page"))
    _build_site(session)
    _find_chromium(session)
    session.run("python", "tools/pages/browser.py", *session.posargs)


@nox.session(venv_backend="none")
def tutorials(session: nox.Session) -> None:
    """Type the tutorials in a fresh environment, compare their output; takes long.

    Pages may be named: `-- docs/get-started/install.md docs/get-started/first-trace.md`.
    """
    build_wheels(session)
    script = str(ROOT / "tools" / "pages" / "tutorials.py")
    session.run(sys.executable, script, *session.posargs, external=True)


@nox.session
def page(session: nox.Session) -> None:
    """Drive npu-profiler's page in headless Chromium; writes the guide's screenshots.

    Takes Debian's Chromium, or fetches one. Other flags (`-- --megabytes 20`) leave pictures out.
    """
    session.install(*group("page"))
    _find_chromium(session)
    packages = ("npu-profiler", "npu-runtime")  # reading a trace needs neither torch nor wheels
    sources = os.pathsep.join(str(ROOT / "packages" / package / "src") for package in packages)
    arguments = session.posargs or ["--pictures", "docs/assets"]
    script = "packages/npu-profiler/tests/load/page.py"
    session.run("python", script, *arguments, env={"PYTHONPATH": sources})


def _build_site(session: nox.Session) -> None:
    """Builds the documentation strictly, and follows every link of the built pages."""
    session.run("mkdocs", "build", "--strict", env=QUIET_MKDOCS)
    session.run("python", "tools/pages/links.py")


def _find_chromium(session: nox.Session) -> None:
    """Fetches Chromium with playwright if PATH has none."""
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        session.log("no chromium on PATH (apt-get install chromium); playwright fetches one")
        session.run("playwright", "install", "chromium")
