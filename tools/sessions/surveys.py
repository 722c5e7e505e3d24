"""Sessions that compare with a reference at length: ops, graphs, models, libraries, devices."""

from __future__ import annotations

import os

import nox

from sessions.environments import run_in, shared_environment
from sessions.repository import BUILD
from sessions.wheels import install_platform, tested_platform


@nox.session(venv_backend="none")
def conformance(session: nox.Session) -> None:
    """Compare npu with the CPU: interface, networks, torch's tests (`-- --suite models`); long."""
    python = tested_platform(session)
    arguments = session.posargs or [
        *("--suite", "interface", "models", "torch"),
        *("--report", "csv", "-o", "conformance.csv"),
    ]
    run_in(session, python, "-m", "npu_ops.op_conformance", *arguments)


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """Call aten's ops at random, 20,000 times (`-- --calls 300`), or compile graphs (`-- graphs`).

    `-- graphs --count 50000 --seed 7 --out DIR` compares compiled random graphs with eager; long.
    """
    module, arguments = "npu_ops.op_conformance.fuzz", session.posargs
    if arguments[:1] == ["graphs"]:
        module, arguments = "npu_compiler.fuzz", arguments[1:]
    run_in(session, tested_platform(session), "-m", module, *arguments)


@nox.session(venv_backend="none")
def models(session: nox.Session) -> None:
    """Compile the suite's architectures and compare with eager (`-- --family vision`); long."""
    arguments = session.posargs or ["--csv", "models.csv"]
    run_in(session, tested_platform(session), "-m", "npu_compiler.suite", *arguments)


@nox.session(venv_backend="none")
def tasks(session: nox.Session) -> None:
    """Run models of every task, compare with transformers (`-- CTC bert --page FILE`); long."""
    arguments = session.posargs or ["--page", "docs/reference/tasks.md"]
    run_in(session, tested_platform(session), "tools/task_survey.py", *arguments)


@nox.session(venv_backend="none")
def decoders(session: nox.Session) -> None:
    """Run every decoder of transformers (`-- mamba --page FILE`), or its releases; long.

    `-- --releases` runs a few with each release of transformers that changes a class of caches.
    """
    python = tested_platform(session)
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
    install_platform(session, python, "test", "ecosystem")
    tests = ["tests/ecosystem", "tests/test_hugging_face.py"]
    run_in(session, python, "-m", "pytest", "-m", "not hardware", *tests, *session.posargs)
    if not session.posargs:  # then all of them have passed
        run_in(session, python, "tools/ecosystem_table.py", "docs/reference/ecosystem.md")


@nox.session(venv_backend="none")
def stub(session: nox.Session) -> None:
    """Run the suites on a stub that enforces the NPU plugin's rules (`-- runtime`); long.

    With --compiler, Intel's compiler, where it is installed, judges each program as well.
    """
    run_in(session, tested_platform(session), "tools/npu_stub/run.py", *session.posargs)


@nox.session(venv_backend="none")
def hardware(session: nox.Session) -> None:
    """Run the tests that need an NPU; hardware.xml has the figures. See the guide first-hour.md."""
    python = tested_platform(session)
    device = os.environ.get("NPU_DEVICE", "NPU")  # named, so that no other device serves instead
    report = ("-o", "junit_family=xunit1", "--junitxml=hardware.xml")
    flags = ("-m", "hardware", *report, *session.posargs)
    run_in(session, python, "-m", "pytest", "tests/hardware", *flags, env={"NPU_DEVICE": device})
