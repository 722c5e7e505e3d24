"""Fails on phrases that the style of pages, docstrings, comments and messages excludes.

    python tools/prose.py [--list PATTERN] [FILE ...]

Phrases with a bar of 0 fail wherever they are found. Others fail if their rate per 10,000 words of
a kind of text exceeds the bar, about three times the rate of uv's and ir-py's documentation. FILE
is by default every text file of the repository; `--list` prints where a pattern occurs.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["PATTERNS", "main", "texts"]

# Name -> expression, bar per 10,000 words, and the advice.
PATTERNS = {
    "opening": (r"\A(?:What|Who|Where|How|Which|Of what)\b(?!.*\?)", 0, "name the thing"),
    "beside": (r"\b[Bb]eside\b", 0, "write next to, or besides"),
    "stands": (
        r"\b(?:stands?|stood|lies|lie|lay)\b(?![- ](?:ins?|for|out|alone)\b)",
        0,
        "write is",
    ),
    "speak": (r"\b(?:tells?|told|says?|said|mends?|mended)\b", 3, "things report, print, raise"),
    "what": (r"\bwhat\b(?![^.]*\?)", 3, "name the noun"),
    "own": (
        r"\b(?:of (?:its|their|our|your) own|\w+'s own|(?:its|their|our|your) own)\b",
        9,
        "omit",
    ),
    "nobody": (r"\b(?:[Nn]obody|none|[Nn]othing)\b", 27, "negate the verb"),
    "negated": (r"\b(?:is|are|was|were|has|have|had) (?:no|none)\b", 18, "negate the verb"),
    "where": (r"(?:^|[.;:] )Where\b|, where (?:there|it|the|one|that|they|a)\b", 9, "write if"),
    "those": (r"\bthose (?:that|of|which|who)\b", 6, "repeat the noun"),
    "whose": (r"\bwhose\b", 6, "write with"),
}
# Help that is checked in the parsers, and a text of others.
_GENERATED = re.compile(r"docs/reference/commands/|CODE_OF_CONDUCT")
_CPP = re.compile(r"//+(.+)|\"((?:[^\"\\\n]|\\.)+)\"")  # comments and strings
_NO_PROSE = re.compile(r"```.*?```|``?[^`]*``?|\]\([^)]*\)|https?:\S+", re.DOTALL)


def _blank(found: re.Match[str]) -> str:
    return " x " + "\n" * found[0].count("\n")


def _page(text: str) -> Iterator[tuple[int, str]]:
    text = re.sub(r"\A---\n.*?\n---\n", _blank, text, flags=re.DOTALL)
    text = re.sub(r"^( *)(```+).*?^\1\2", _blank, text, flags=re.DOTALL | re.MULTILINE)
    for number, line in enumerate(text.splitlines(), 1):
        yield number, re.sub(r"^#+ |^", lambda found: "" if found[0] else " ", line, count=1)


def _python(text: str) -> Iterator[tuple[str, int, str]]:
    read: set[ast.AST] = set()  # docstrings, and parts of f-strings
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node):
                read.update(ast.iter_child_nodes(node.body[0]))
                yield "code", node.body[0].lineno, docstring
        elif isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            read.update(parts)
            yield "code", node.lineno, "".join(str(part.value) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in read:
            yield "code", node.lineno, node.value if node.value.count(" ") > 1 else ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield "code", token.start[0], token.string.lstrip("#: ")


def texts(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yields the kind, line and words of each piece of prose in a file, without code."""
    text = path.read_text(encoding="utf-8")
    found: Iterator[tuple[str, int, str]]
    if path.suffix == ".md":
        found = (("pages", line, words) for line, words in _page(text))
    elif path.suffix in {".py", ".pyi"}:
        found = _python(text)
    else:
        found = (
            ("code", text.count("\n", 0, piece.start()) + 1, (piece[1] or piece[2]).strip())
            for piece in _CPP.finditer(text)
            if piece[1] or piece[2].count(" ") > 1
        )
    for kind, line, words in found:
        yield kind, line, _NO_PROSE.sub(_blank, words)


def main(arguments: Sequence[str]) -> int:
    """Print the phrases that exceed their bar; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", choices=PATTERNS, default="")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    names = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout
    files = options.files or [
        Path(name)
        for name in names.splitlines()
        if name.endswith((".md", ".py", ".pyi", ".cpp", ".h", ".js"))
        and not re.search(r"(?:^|/)tests/", name)
        and not _GENERATED.search(name)
    ]
    sizes: Counter[str] = Counter()
    hits: dict[tuple[str, str], list[str]] = {}
    for file in files:
        for kind, line, words in texts(file):
            sizes[kind] += len(words.split())
            for name, (expression, *_) in PATTERNS.items():
                for found in re.finditer(expression, words, re.MULTILINE):
                    at = line + words.count("\n", 0, found.start())
                    hits.setdefault((kind, name), []).append(f"{file}:{at}: {found[0].strip()!r}")
    problems = []
    for (kind, name), places in sorted(hits.items()):
        _, bar, advice = PATTERNS[name]
        rate = len(places) * 1e4 / sizes[kind]
        if name == options.list:
            problems += places
        elif not bar and not options.list:
            problems += [f"{place}: {advice}" for place in places]
        elif rate > bar and not options.list:
            problems.append(
                f"{kind}: {rate:.1f} of {name!r} per 10,000 words, at most {bar}: {advice}"
            )
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems and not options.list else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
