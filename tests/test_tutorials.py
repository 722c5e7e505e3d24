"""Each tutorial, word by word: files are saved, commands typed, and what they print is compared.

"Save this as `name.py`" starts a file, and the page's further Python is added to it. Commands run
in the page's order, in one folder. A block of text after commands holds parts of lines that must be
on the screen in this order.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = [
    "first-model.md",
    "first-trace.md",
    pytest.param("first-op.md", marks=pytest.mark.long),  # builds a wheel, as test_custom_op does
]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```|Save this as `([\w.]+)`", re.MULTILINE | re.DOTALL)
# They wait for a reader.
OPENS_A_BROWSER = "npu-profiler view"

pytestmark = pytest.mark.slow


def type_in(folder: Path, command: str, cache: Path) -> str:
    site = folder / "site"  # pip installs here, so that no other test meets the wheel
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(cache),
            "PIP_TARGET": str(site),
            "PIP_NO_DEPS": "1",
            "PYTHONPATH": str(site),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_tutorial_does_what_it_says(root, tmp_path, cache, name):
    page = (root / "docs" / "tutorials" / name).read_text()
    file, shown, compared = None, "", 0
    for kind, text, saved in BLOCK.findall(page):
        if saved:
            file = tmp_path / saved
            file.write_text("")
        elif kind == "python":
            with file.open("a") as script:
                script.write(text + "\n")
        elif kind == "bash":
            commands = [line for line in text.splitlines() if not line.startswith(OPENS_A_BROWSER)]
            shown = type_in(tmp_path, "\n".join(commands), cache)
        elif kind == "text":
            rest = shown
            for line in text.splitlines():
                assert line in rest, f"{line!r} is not in\n{shown}"
                rest = rest.partition(line)[2]
                compared += 1
    assert compared
