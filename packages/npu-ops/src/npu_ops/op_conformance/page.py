"""``python -m npu_ops.op_conformance.page CSV``: writes the documentation's coverage page.

The page depends only on the run's cells and facts.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from npu_ops.op_conformance.cell import Cell, Outcome
from npu_ops.op_conformance.report import failed_cells, read_csv
from npu_ops.op_conformance.torch_databases import DTYPES
from npu_ops.tolerances import EXPECTED

__all__ = ["Facts", "coverage_page"]

# Prefix of an op's name in torch's database -> family; the first match applies.
_FAMILIES = {
    "nn_functional_": "`torch.nn.functional`",
    "linalg_": "`torch.linalg`",
    "fft_": "`torch.fft`",
    "special_": "`torch.special`",
    "signal_": "`torch.signal`",
    "masked_": "`torch.masked`",
    "_foreach": "lists of tensors (`torch._foreach`)",
}
_WHAT = (
    "A cell is one entry of torch's own test database, one dtype and one check, over all samples "
    "of the database. It is equal when every sample gives the CPU's result within the usual "
    "tolerance of its dtype, or the CPU's class of error, on the right device. Nothing here was "
    "shown on an NPU: the driver ran OpenVINO's CPU plugin, see "
    "[Verification](../verification/index.md)."
)
_REST = "`torch`, tensor methods, others"
_DTYPES = [str(dtype).removeprefix("torch.") for dtype in DTYPES]


@dataclass(frozen=True)
class Facts:
    """Facts about a run, for its page.

    Attributes:
        date: date of the run, as in ``2026-11-20``.
        command: the command line.
        versions: versions, on one line.
        driver: driver of the runtime, and its device.
    """

    date: str
    command: str
    versions: str
    driver: str


def coverage_page(cells: Sequence[Cell], facts: Facts) -> str:
    """Returns the page as Markdown; deterministic."""
    cells = sorted(cells, key=lambda cell: (cell.check, cell.dtype, cell.subject))
    counted = [cell for cell in cells if cell.outcome is not Outcome.EMPTY]
    forward = [cell for cell in counted if cell.check == "forward"]
    others = [cell for cell in counted if cell.check != "forward"]
    samples = sum(cell.samples for cell in cells)
    return "\n".join(
        [
            "# Compared operators",
            "",
            f"Made from a run of {facts.date}; `python -m npu_ops.op_conformance.page` writes it.",
            "",
            f"- Command: `{facts.command}`",
            f"- Versions: {facts.versions}",
            f"- Driver: {facts.driver}",
            f"- {len(counted):,} cells, {samples:,} samples, each computed on `npu` and on `cpu`.",
            "",
            _WHAT,
            "",
            "## Forward, by family and dtype",
            "",
            "Equal cells of all cells.",
            "",
            *_matrix("Family", forward, _family, _DTYPES),
            "",
            "## Other checks of operators, modules and optimizers",
            "",
            *_matrix("Check", others, lambda cell: cell.check, ["float32", "float64"]),
            "",
            "## Exceptions",
            "",
            *_exceptions(counted),
            "",
            "## Failed",
            "",
            *_failures(failed_cells(cells)),
            "",
        ]
    )


def _family(cell: Cell) -> str:
    for beginning, family in _FAMILIES.items():
        if cell.subject.startswith(beginning):
            return family
    return _REST


def _matrix(
    heading: str,
    cells: Iterable[Cell],
    row_of: Callable[[Cell], str],
    columns: Sequence[str],
) -> list[str]:
    """Returns a table of passed and compared cells by row and dtype, with totals."""
    total: Counter[tuple[str, str]] = Counter()
    equal: Counter[tuple[str, str]] = Counter()
    for cell in cells:
        for row in (row_of(cell), "all"):
            total[row, cell.dtype] += 1
            equal[row, cell.dtype] += cell.outcome is Outcome.PASSED
    rows = [*sorted({row for row, _ in total} - {"all"}), "all"]
    lines = [f"| {heading} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        shown = [
            f"{equal[row, column]:,} of {total[row, column]:,}" if total[row, column] else "–"
            for column in columns
        ]
        lines.append(f"| {row} | {' | '.join(shown)} |")
    return lines


def _exceptions(cells: Iterable[Cell]) -> list[str]:
    """Returns the cells with expected differences, by reason."""
    by_reason: dict[str, list[str]] = {}
    for cell in cells:
        reason = EXPECTED.get((cell.subject, cell.dtype, cell.check))
        if reason is not None and cell.outcome is not Outcome.PASSED:
            by_reason.setdefault(reason, []).append(f"`{cell.subject}` {cell.dtype} {cell.check}")
    if not by_reason:
        return ["None."]
    return [f"- {', '.join(names)}: {reason}." for reason, names in sorted(by_reason.items())]


def _failures(cells: Iterable[Cell]) -> list[str]:
    rows = [
        f"- `{cell.subject}` {cell.dtype} {cell.check}, {cell.outcome}: {cell.failures} of "
        f"{cell.samples} samples. `{cell.detail}`"
        for cell in cells
    ]
    return rows or ["None."]


def _facts(file: Path, command: str) -> Facts:
    device = torch.npu.get_device_properties(0)  # type: ignore[attr-defined]
    date = datetime.fromtimestamp(file.stat().st_mtime, tz=UTC).date().isoformat()
    names = ("npu-ops", "npu-runtime", "openvino")
    versions = ", ".join([f"torch {torch.__version__}", *(f"{n} {version(n)}" for n in names)])
    return Facts(date, command, versions, f"{device.driver}, {device.name}")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the page of a run's CSV."""
    parser = argparse.ArgumentParser(
        prog="python -m npu_ops.op_conformance.page", description="Prints the page of a run's CSV."
    )
    parser.add_argument("csv", type=Path, metavar="CSV", help="from --csv of the run")
    parser.add_argument("--command", default="nox -s conformance", help="that made the CSV")
    arguments = parser.parse_args(argv)
    facts = _facts(arguments.csv, arguments.command)
    print(coverage_page(read_csv(arguments.csv), facts), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
