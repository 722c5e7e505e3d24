"""Sessions about the gate itself: where its time goes."""

from __future__ import annotations

import sys

import nox

from sessions.repository import ROOT


@nox.session(venv_backend="none")
def durations(session: nox.Session) -> None:
    """Print where the last `nox -s tests` spent its time (`-- --most 20`)."""
    script = str(ROOT / "tools" / "durations.py")
    session.run(sys.executable, script, *session.posargs, external=True)
