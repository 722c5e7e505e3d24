"""Runs packages' tests as device NPU on the stub.

`python tools/npu_stub/run.py [--compiler] [SUITE ...] [FLAGS]`: a suite is a key of SUITES; flags,
and paths of tests, go to pytest. expected.toml lists tests that cannot pass, with reasons; if one
passes, the run fails. With --compiler the stub also refuses programs that Intel's compiler refuses,
with its messages; verdicts are stored in build/npu-stub.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from build import build_stub
from verdicts import Verdicts, serving

from npu_compiler.errors import TargetError
from npu_compiler.target_compiler import target_compiler

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
COMPILER = "--compiler"
SUITES = {
    "runtime": ["packages/npu-runtime/tests"],
    "compiler": ["packages/npu-compiler/tests"],
    "llm": ["packages/npu-llm/tests"],
}


def main(arguments: list[str]) -> int:
    """Builds the stub, runs the suites, prints the records; returns the exit code."""
    chosen = [name for name in arguments if name in SUITES]
    flags = [argument for argument in arguments if argument not in (COMPILER, *SUITES)]
    named = [flag for flag in flags if not flag.startswith("-") and "tests" in flag]
    paths = [path for name in chosen or ([] if named else SUITES) for path in SUITES[name]]
    with tempfile.TemporaryDirectory(prefix="npu-stub-") as place, contextlib.ExitStack() as stack:
        record = Path(place, "record.jsonl")
        search = [str(HERE), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "NPU_DEVICE": "NPU",
            "NPU_OPENVINO_LIBRARY": str(build_stub(Path(place))),
            "NPU_STUB_RECORD": str(record),
            "PYTHONPATH": os.pathsep.join(filter(None, search)),
        }
        verdicts = None
        if COMPILER in arguments:
            environment["NPU_STUB_COMPILER"] = str(address := Path(place, "compiler"))
            try:
                compiler = stack.enter_context(target_compiler())
            except TargetError as failure:
                print(failure, file=sys.stderr)
                return 2
            verdicts = Verdicts(compiler, ROOT / "build" / "npu-stub")
            stack.enter_context(serving(verdicts, address))
        plugins = ["-p", "expected_failures", "-p", "cpu_defects"]
        command = [sys.executable, "-m", "pytest", *plugins, *paths, *flags]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        print(f"recorded: {_sum(record)}")
        if verdicts is not None:
            print(verdicts)
    return code


def _sum(record: Path) -> str:
    """Returns the sum of the counts of all processes."""
    counts: Counter[str] = Counter()
    for line in record.read_text().splitlines() if record.exists() else ():
        counts.update(json.loads(line))
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items())) or "nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
