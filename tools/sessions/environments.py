"""Environments: creates them under `.nox`, installs each step once, and runs their interpreters.

Two environments are shared: `.nox/build` builds the wheels and `.nox/platform` runs tests, types
and benchmarks. torch takes a gigabyte in each environment, so one for each of six test sessions
would cost more than the tests themselves.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nox

from sessions.repository import (
    BUILD,
    ROOT,
    build_requirements,
    group,
    run_requirements,
)

__all__ = [
    "build_environment",
    "digest_file",
    "install_dependencies",
    "install_once",
    "python_of",
    "record_duration",
    "run_in",
    "shared_environment",
]

DURATIONS = BUILD / "durations.json"


def python_of(session: nox.Session) -> Path:
    """Returns the interpreter of a session's environment."""
    return Path(session.bin) / "python"


def shared_environment(session: nox.Session, name: str) -> Path:
    """Creates the environment `.nox/<name>` if it is missing; returns its interpreter."""
    place = ROOT / ".nox" / name
    python = place / "bin" / "python"
    made_by = place / "made-by"
    if not made_by.exists() or made_by.read_text() != sys.version:
        shutil.rmtree(place, ignore_errors=True)
        session.run(sys.executable, "-m", "virtualenv", "--quiet", str(place), external=True)
        made_by.write_text(sys.version)
    return python


def build_environment(session: nox.Session) -> Path:
    """Creates `.nox/build` and installs the build requirements; returns its interpreter."""
    python = shared_environment(session, "build")
    # Compiling bytecode takes longer than the rest, and a build imports little of it.
    install_once(session, python, "requirements", "--no-compile", *build_requirements())
    return python


def run_in(
    session: nox.Session,
    python: Path,
    *arguments: str | Path,
    env: dict[str, str] | None = None,
    codes: Sequence[int] = (0,),
) -> None:
    """Runs an environment's interpreter, with that environment's programs first on PATH."""
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    variables = {"PATH": path} | (env or {})
    session.run(
        str(python), *map(str, arguments), env=variables, external=True, success_codes=codes
    )


def install_once(
    session: nox.Session, python: Path, what: str, *arguments: str | Path, key: str = ""
) -> None:
    """Installs a step unless this environment already has it.

    Args:
        session: the running session.
        python: the environment's interpreter.
        what: name of the step.
        *arguments: arguments of `pip install`.
        key: identifies the step's contents; by default the arguments, with digests of files.
    """
    environment = python.parents[1]
    record = environment / f"installed-{what}.json"
    wanted = key or json.dumps([[str(item), digest_file(item)] for item in arguments])
    if record.exists() and record.read_text() == wanted:
        return
    record.unlink(missing_ok=True)
    with record_duration(environment.name, f"install {what}"):
        run_in(session, python, "-m", "pip", "install", *arguments)
    record.write_text(wanted)


def install_dependencies(
    session: nox.Session, python: Path, *groups: str, extra: Sequence[str] = ()
) -> None:
    """Installs the packages' requirements and dependency groups, but not the packages."""
    needs = [*run_requirements(), *extra, *(need for name in groups for need in group(name))]
    install_once(session, python, "-".join(["dependencies", *groups]), *needs)


@contextmanager
def record_duration(environment: str, step: str) -> Iterator[None]:
    """Records how long a step took, for tools/durations.py; a failed step is not recorded."""
    started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    start_s = time.perf_counter()
    yield
    known = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    duration_s = round(time.perf_counter() - start_s, 3)
    known.setdefault(environment, {})[step] = {"started": started, "duration_s": duration_s}
    DURATIONS.parent.mkdir(exist_ok=True)
    DURATIONS.write_text(json.dumps(known, indent=1))


def digest_file(file: str | Path) -> str:
    """Returns a digest of a file's bytes, or "" if the file does not exist."""
    path = Path(file)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
