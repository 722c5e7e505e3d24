"""Tables as CSV files."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from npu_profiler.output_file import unwritable

__all__ = ["make_directory", "write_csv"]


def make_directory(path: Path) -> None:
    """Makes a directory for files, if it is not there.

    Raises:
        TraceError: [output-unwritable] It cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, "output", error) from None


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Writes rows under a header; returns how many.

    Raises:
        TraceError: [output-unwritable] The file cannot be written.
    """
    count = 0
    try:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            for row in rows:
                writer.writerow(row)
                count += 1
    except OSError as error:
        raise unwritable(path, "output", error) from None
    return count
