"""Types the tutorials' commands, and compares the output with the page.

    python tools/pages/tutorials.py --wheels dist [--work DIR] [--keep] [PAGE ...]

A fresh clone, an empty home folder and a shell with only PATH, HOME, TERM and pip's variables
simulate a reader's machine. Its Python is that of this tool, without packages of a virtual
environment. The built wheels are copied to the folder where `nox -s wheels` looks for existing
ones.

"Save this as `name`" starts a file with the block that follows, and later blocks of Python on the
page are added to it. A block of bash is typed. Of a block of text after it, each line must be a
line that was printed, in this order; the page may omit lines in between. `…` matches variable text:
a time, a size, a version, the words of a sampled answer.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "TUTORIALS",
    "Mismatch",
    "Reader",
    "bare_environment",
    "compare",
    "main",
    "type_page",
]

ROOT = Path(__file__).parents[2]
TUTORIALS = (
    "docs/get-started/install.md",
    "docs/get-started/first-answer.md",
    "docs/get-started/first-model.md",
    "docs/get-started/first-trace.md",
    "docs/get-started/first-op.md",
)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```|Save this as `([\w.]+)`", re.MULTILINE | re.DOTALL)
# A server runs until Ctrl-C, which is sent after a delay.
_SERVES = re.compile(r"^npu-profiler view (?!.*-o )", re.MULTILINE)
_CTRL_C = "timeout --preserve-status --signal=INT 15 "
_ENDED = "typed-and-ended"


class Mismatch(Exception):
    """The output differs from the page."""


@dataclass
class Reader:
    """A shell session that types commands and reads output.

    Attributes:
        folder: working directory of the shell, and of saved files.
        environment: environment of the shell.
    """

    folder: Path
    environment: Mapping[str, str]

    def __post_init__(self) -> None:
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        with self._shell:  # closes its input, which ends it, and waits
            pass

    def type(self, command: str) -> str:
        """Types a block; returns the output. The shell keeps its variables for the next block."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as block:
            # Not `set -e`, which would end the shell: the first failure stops the block.
            block.write("trap 'return $?' ERR\n")
            block.write(_SERVES.sub(lambda found: _CTRL_C + found[0], command))
            block.flush()
            typed = f". {block.name} </dev/null; typed=$?; trap - ERR; echo; echo {_ENDED} $typed"
            self._shell.stdin.write(f"{typed}\n")
            self._shell.stdin.flush()
            shown = []
            for line in self._shell.stdout:
                if line.startswith(_ENDED):
                    code = int(line.split()[1])
                    break
                shown.append(line)
            else:
                code = self._shell.wait()
        text = "".join(shown)
        if code:
            raise Mismatch(f"exit code {code}:\n{command}\n{text}")
        return text


def type_page(page: str, reader: Reader) -> int:
    """Types a page's commands; returns the number of compared lines."""
    file: Path | None = None
    shown, compared, is_new = "", 0, False
    for kind, text, saved in _BLOCK.findall(page):
        if saved:
            file, is_new = reader.folder / saved, True
        elif is_new or (kind == "python" and file):
            assert file is not None
            with file.open("w" if is_new else "a") as script:
                script.write(text + "\n")
            is_new = False
        elif kind == "bash":
            shown = reader.type(text)
        elif kind == "text":
            compared += compare(text, shown)
    return compared


def compare(told: str, shown: str) -> int:
    """Compares the page's output with the printed one; returns the number of compared lines."""
    rest = iter(_lines(shown))
    count = 0
    for line in _lines(told):
        pattern = re.compile(r"\s*".join(map(_pattern, line.split())))
        if not any(pattern.fullmatch(printed.strip()) for printed in rest):
            raise Mismatch(f"the page shows {line!r}, which was not printed there:\n{shown}")
        count += 1
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Types the tutorials in a fresh environment; returns 1 after the first mismatch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", default=TUTORIALS)
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="the built wheels")
    parser.add_argument("--work", type=Path, help="where the clone is made (default: temporary)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        clone, home = Path(folder) / "clone", Path(folder) / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        shutil.copytree(options.wheels, clone / "dist")
        (clone / "build").mkdir()
        shutil.copy(options.wheels.parent / "build" / "wheels.json", clone / "build")
        with Reader(clone, bare_environment(home)) as reader:
            return _type_all(options.pages, reader)


def _type_all(pages: Sequence[str], reader: Reader) -> int:
    for name in pages:
        begin_s = time.monotonic()
        try:
            compared = type_page((reader.folder / name).read_text(), reader)
        except Mismatch as fault:
            print(f"{name}: {fault}", file=sys.stderr)
            return 1
        taken_s = time.monotonic() - begin_s
        print(f"{name}: holds, {compared} lines compared, {taken_s:.0f} s", flush=True)
    return 0


def bare_environment(home: Path) -> dict[str, str]:
    """Returns a shell's environment on a machine with Python, a compiler and git only."""
    kept = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    path = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"
    return kept | {"PATH": path, "HOME": str(home), "TERM": "dumb"}


def _lines(text: str) -> Iterator[str]:
    return (line for line in map(str.strip, text.splitlines()) if line)


def _pattern(word: str) -> str:
    return ".*".join(map(re.escape, word.split("…")))


if __name__ == "__main__":
    sys.exit(main())
