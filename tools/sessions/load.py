"""Sessions under load: memory over time, many requests, and benchmarks."""

from __future__ import annotations

from pathlib import Path

import nox

from sessions.environments import run_in
from sessions.repository import PACKAGES, ROOT, named_packages
from sessions.wheels import address_sanitizer, tested_platform


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Run the benchmarks of the packages named after --, or of all; flags go to each of them."""
    python = tested_platform(session)
    named, flags = named_packages(session.posargs, PACKAGES)
    for package in named or PACKAGES:
        for script in sorted((ROOT / "packages" / package / "benchmarks").glob("[!_]*.py")):
            run_in(session, python, script.relative_to(ROOT), *flags)


@nox.session
def contract(session: nox.Session) -> None:
    """Send `npu-llm serve` 2,000 requests that its own OpenAPI description allows; long."""
    python = tested_platform(session)
    session.install("schemathesis>=4,<5")  # separate, because it installs a pytest plugin
    tool = Path(session.bin) / "schemathesis"
    script = "packages/npu-llm/tests/load/contract.py"
    run_in(session, python, script, "--tool", tool, *session.posargs)


@nox.session(venv_backend="none")
def soak(session: nox.Session) -> None:
    """Run a mixed load for half an hour on each driver (`-- --minutes 5`, `-- --address`).

    With --serving it is a hundred clients of `npu-llm serve` instead, for ten minutes.

    With --address the native code is compiled with AddressSanitizer, next to the ordinary wheels,
    and the tests of kernel programs and of sparse attention run first.
    """
    python = tested_platform(session)
    if "--serving" in session.posargs:
        flags = [argument for argument in session.posargs if argument != "--serving"]
        run_in(session, python, "packages/npu-llm/tests/load/soak.py", *flags)
        return
    load = Path("packages/npu-runtime/tests/load")
    flags = [argument for argument in session.posargs if argument != "--address"]
    variables = address_sanitizer(session) if "--address" in session.posargs else {}
    if variables:
        flags.append("--ignore=rss_mib")
        # Without the tests of exhausted memory, for which the sanitizer ends the process; and
        # without torch.compile: its compilers take minutes under it.
        tests = Path("packages/npu-ops/tests")
        chosen = (tests / "kernel_programs", tests / "sparse_attention")
        named = ("-k", "not memory_is_an_error and not (sparse_attention and compiled)")
        run_in(session, python, "-m", "pytest", *chosen, *named, env=variables)
    else:  # the results first: ten thousand operations per stream
        where = "packages/npu-runtime/tests/test_load.py"
        run_in(session, python, "-m", "pytest", where, "-m", "long")
    for driver in ("sim", "openvino"):
        run_in(session, python, load / "soak.py", *flags, env=variables | {"NPU_DRIVER": driver})
