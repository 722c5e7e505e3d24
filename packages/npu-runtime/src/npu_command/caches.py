"""Commands that list and remove cache entries."""

from __future__ import annotations

import argparse
import datetime
import difflib
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu_command.errors import InputError
from npu_command.output import add_json, aligned, give_answer

__all__ = ["KeptEntry", "act", "add_actions", "age_s", "ago"]

_UNITS_S = {"h": 3600, "d": 86_400, "w": 7 * 86_400}
_ID_LENGTH = 8


@dataclass(frozen=True)
class KeptEntry:
    """One folder of a cache."""

    folder: Path  # where it is
    name: str  # of the model or graph in it
    details: tuple[str, ...]  # distinguishes entries of the same name, such as ("int8", "kernels")
    size_bytes: int  # of its files
    used: float  # when it was last used, in seconds since 1970

    @property
    def id(self) -> str:
        """The first characters of the digest in the folder's name."""
        return self.folder.name.rsplit("-", 1)[-1][:_ID_LENGTH]


def add_actions(parser: argparse.ArgumentParser) -> None:
    """Adds the cache actions; the default lists the entries."""
    add_json(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    remove = actions.add_parser("rm", help="remove entries")
    remove.add_argument("words", nargs="+", metavar="ID|NAME", help="as the list shows them")
    prune = actions.add_parser("prune", help="remove entries that were not used for long")
    prune.add_argument(
        "--older-than", type=age_s, required=True, metavar="AGE", help="such as 12h, 30d or 8w"
    )
    where = actions.add_parser("dir", help="print the folder of the cache")
    for action in (remove, prune, where):
        add_json(action)


def age_s(text: str) -> int:
    """Returns the seconds in an age such as 12h, 30d or 8w."""
    found = re.fullmatch(r"(\d{1,6})([hdw])", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"must be a number and h, d or w, such as 30d, got {text!r}"
        )
    return int(found[1]) * _UNITS_S[found[2]]


def act(options: argparse.Namespace, entries: Sequence[KeptEntry], directory: Path) -> int:
    """Performs the action chosen by the options of `add_actions`; returns the exit code.

    Raises [kept-entry] if no entry has the name given.
    """
    if options.action == "dir":
        give_answer(options.json, {"folder": directory}, lambda: print(directory))
    elif options.action == "rm":
        named = [entry for word in options.words for entry in _named(word, entries)]
        _remove(named, options.json)
    elif options.action == "prune":
        oldest = time.time() - options.older_than
        _remove([entry for entry in entries if entry.used < oldest], options.json)
    else:
        listed = [_as_json(entry) for entry in _sorted(entries)]
        give_answer(options.json, listed, lambda: _list(entries, directory))
    return 0


def _named(word: str, entries: Sequence[KeptEntry]) -> list[KeptEntry]:
    found = [entry for entry in entries if word in (entry.id, entry.name, entry.folder.name)]
    if found:
        return found
    known = sorted({text for entry in entries for text in (entry.id, entry.name)})
    near = difflib.get_close_matches(word, known, n=1)
    advice = f"Did you mean {near[0]!r}?" if near else "Without a word, the command lists them."
    raise InputError(
        f"`cache` must be the id or name of an entry, got {word!r}. {advice}",
        code="kept-entry",
    )


def _remove(entries: Iterable[KeptEntry], place: Path | None) -> None:
    chosen = list({entry.folder: entry for entry in entries}.values())
    for entry in chosen:
        shutil.rmtree(entry.folder)
    freed = sum(entry.size_bytes for entry in chosen)

    def show() -> None:
        for entry in chosen:
            print(f"removed {entry.name} {entry.id}")
        print(f"{_counted(len(chosen))} removed, {freed / 1e6:,.1f} MB freed")

    removed = [_as_json(entry) for entry in chosen]
    give_answer(place, {"removed": removed, "freed_bytes": freed}, show)


def _list(entries: Sequence[KeptEntry], directory: Path) -> None:
    """Prints each name on a separate line, so that its details fit a narrow terminal."""
    ordered = _sorted(entries)
    rows = [
        (e.id, *e.details, f"{e.size_bytes / 1e6:,.1f} MB", f"used {ago(e.used)}") for e in ordered
    ]
    name = None
    for entry, line in zip(ordered, aligned(rows, indent=2), strict=True):
        if entry.name != name:
            name = entry.name
            print(name)
        print(line)
    total = sum(entry.size_bytes for entry in entries)
    print(f"{_counted(len(entries))}, {total / 1e6:,.1f} MB in {directory}")


def _sorted(entries: Sequence[KeptEntry]) -> list[KeptEntry]:
    latest: dict[str, float] = {}
    for entry in entries:
        latest[entry.name] = max(entry.used, latest.get(entry.name, 0.0))
    return sorted(entries, key=lambda one: (-latest[one.name], one.name, -one.used))


def _as_json(entry: KeptEntry) -> dict[str, object]:
    used = datetime.datetime.fromtimestamp(entry.used, datetime.UTC)
    return {
        "id": entry.id,
        "name": entry.name,
        "details": entry.details,
        "size_bytes": entry.size_bytes,
        "last_used": used.isoformat(timespec="seconds"),
        "folder": str(entry.folder),
    }


def _counted(count: int) -> str:
    return f"{count:,} entry" if count == 1 else f"{count:,} entries"


def ago(used: float) -> str:
    """Returns the time since `used`, in seconds since 1970, such as "3 days ago"."""
    seconds = time.time() - used
    if seconds < 120:
        return "just now"
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length):,} {unit} ago"
    raise AssertionError(seconds)
