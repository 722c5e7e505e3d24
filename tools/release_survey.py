"""Runs some decoders with each release of transformers that changes a cache class.

`nox -s decoders -- --releases`. A release and its requirements are installed into a folder that
comes first on the path; torch remains that of the environment.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["NAMES", "RELEASES", "Release", "cache_classes", "changes", "page"]

# The last patch of each minor release since the oldest that npu-llm supports.
RELEASES = (
    "4.57.6", "5.0.0", "5.1.0", "5.2.0", "5.3.0", "5.4.0", "5.5.4", "5.6.2", "5.7.0", "5.8.1",
    "5.9.0", "5.10.4", "5.11.0", "5.12.1", "5.13.1", "5.14.1", "5.15.1", "5.16.1", "5.17.0",
    "5.18.0", "5.19.0", "5.20.2", "5.21.1", "5.22.2", "5.23.0", "5.24.0",
)  # fmt: skip
# A cache of each kind: keys and values, sliding windows, latent caches, states, and mixtures.
NAMES = ("llama", "gemma3_text", "deepseek_v3", "mamba", "lfm2", "falcon_h1")
_FILE = "transformers/cache_utils.py"


@dataclass(frozen=True)
class Release:
    """A tested release of transformers.

    Attributes:
        version: the release.
        changed: cache classes that are new, removed or changed since the previous release.
        verdicts: verdict by decoder, as in tools/decoder_survey.py.
    """

    version: str
    changed: tuple[str, ...]
    verdicts: dict[str, str]


def cache_classes(source: str) -> dict[str, str]:
    """Returns the public classes of a module with a digest of their code, without docstrings."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in ast.walk(node):
                body = getattr(inner, "body", None)
                if isinstance(body, list) and body and _is_text(body[0]):
                    del body[0]
            found[node.name] = hashlib.sha256(ast.dump(node).encode()).hexdigest()
    return found


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Returns new, removed and changed classes."""
    return tuple(sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n)))


def page(releases: Sequence[Release]) -> str:
    """Returns the page docs/reference/transformers-releases.md of a run."""
    lines = [
        "# Supported releases of transformers",
        "",
        f"Made from a run of {datetime.date.today()}, by `nox -s decoders -- --releases`.",
        "",
        (
            "npu-llm uses transformers' cache classes. These are the oldest supported release and "
            "those in which a class changed, with the result of a decoder of each kind: "
            "*equal* means transformers' tokens, as in "
            "[Supported decoders](decoders.md), *refused* an error with a code, and *absent* that "
            "the release does not have it."
        ),
        "",
        f"| Release | {' | '.join(NAMES)} | Classes of caches that changed |",
        f"|{'---|' * (len(NAMES) + 2)}",
    ]
    for one in releases:
        cells = [one.verdicts.get(name, "absent") for name in NAMES]
        names = ", ".join(f"`{name}`" for name in one.changed)
        lines.append(f"| {one.version} | {' | '.join(cells)} | {names or 'the first'} |")
    return "\n".join(lines) + "\n"


def survey(releases: Sequence[str], work: Path) -> Iterator[Release]:
    """Yields the result of the first release, and of each that changes a cache class."""
    before: dict[str, str] | None = None
    for version in releases:
        after = cache_classes(_source(version, work / "wheels"))
        changed = () if before is None else changes(before, after)
        if before is None or changed:
            yield Release(version, changed, _verdicts(version, work))
        before = after


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


def _source(version: str, folder: Path) -> str:
    wheel = folder / f"transformers-{version}-py3-none-any.whl"
    if not wheel.exists():
        _pip("download", "--no-deps", "-d", str(folder), f"transformers=={version}")
    with zipfile.ZipFile(wheel) as content:
        return content.read(_FILE).decode()


def _verdicts(version: str, work: Path) -> dict[str, str]:
    """Runs a release's decoders, in a process that imports this release."""
    target = work / version
    if not target.exists():
        _pip("install", "--target", str(target), f"transformers=={version}")
    path = os.pathsep.join([str(target), str(Path(__file__).parent)])
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--here", version],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _here(version: str) -> dict[str, str]:
    """Runs the decoders with the release imported by this process."""
    import transformers

    from decoder_survey import make
    from decoder_survey import survey as decoders

    if transformers.__version__ != version:
        raise SystemExit(f"transformers must be {version}, got {transformers.__version__}")
    found = {}
    known = []
    for name in NAMES:
        if name not in transformers.CONFIG_MAPPING:
            continue
        try:
            make(name)
        except Exception as failure:  # noqa: BLE001 - whatever a release's own code raises
            found[name] = f"transformers raises {type(failure).__name__}"
        else:
            known.append(name)
    for one in decoders(known):
        print(json.dumps(asdict(one)), file=sys.stderr, flush=True)
        code = re.search(r"\[([a-z-]+)\]$", one.detail)
        found[one.name] = f"{one.verdict}, `{code[1]}`" if code else one.verdict
    return found


def main(arguments: Sequence[str]) -> int:
    """Runs the releases; returns 1 if a decoder differs or crashes with one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", help="all by default")
    parser.add_argument("--work", type=Path, help="folder that keeps the installed packages")
    parser.add_argument("--page", type=Path, help="write the findings to this page")
    parser.add_argument("--here", metavar="VERSION", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here is not None:
        print(json.dumps(_here(options.here)))
        return 0
    if options.work is None:
        parser.error("--work: a folder must be there to install into. Name one.")
    findings = []
    for one in survey(options.versions or RELEASES, options.work):
        findings.append(one)
        print(f"{one.version:8} {one.verdicts}  {', '.join(one.changed)}", flush=True)
    if options.page is not None:
        options.page.write_text(page(findings))
    verdicts = {verdict for one in findings for verdict in one.verdicts.values()}
    return int(bool({"differs", "crash"} & verdicts))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
