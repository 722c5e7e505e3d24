"""The results as a table for people and as JSON-like values for programs."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from npu_runtime.driver_conformance.run import BLOCKED, FAIL, PASS, UNSUPPORTED, Result

__all__ = ["as_json", "as_table", "exit_code"]


def exit_code(results: Sequence[Result]) -> int:
    """0 when every check passed or is unsupported, else 1."""
    return int(any(result.outcome in (FAIL, BLOCKED) for result in results))


def as_table(driver: str, results: Sequence[Result]) -> str:
    """One line for each check, grouped by the function it belongs to, and a closing line."""
    width = max(len(result.field) for result in results)
    name_width = max(len(result.check) for result in results)
    lines = []
    for field, group in groupby(results, key=lambda result: result.field):
        for number, result in enumerate(group):
            head = field if number == 0 else ""
            reason = f": {result.reason}" if result.reason else ""
            name = result.check.replace("_", " ")
            lines.append(f"{head:{width}}  {name:{name_width}}  {result.outcome}{reason}")
    lines += ["", closing_line(driver, results)]
    return "\n".join(lines)


def closing_line(driver: str, results: Sequence[Result]) -> str:
    """What was checked and how it ended, in one line."""
    counts = Counter(result.outcome for result in results)
    fields = len({result.field for result in results})
    told = ", ".join(
        f"{counts[outcome]} {outcome}"
        for outcome in (PASS, FAIL, BLOCKED, UNSUPPORTED)
        if counts[outcome]
    )
    of = f"{fields} field" + ("" if fields == 1 else "s")
    return f"driver {driver}: {len(results)} checks of {of} of npu_driver: {told}"


def as_json(driver: str, results: Sequence[Result]) -> dict[str, object]:
    """The same facts."""
    counts = Counter(result.outcome for result in results)
    return {
        "driver": driver,
        "passed": exit_code(results) == 0,
        "counts": {outcome: counts[outcome] for outcome in (PASS, FAIL, BLOCKED, UNSUPPORTED)},
        "checks": [
            {
                "field": result.field,
                "check": result.check,
                "outcome": result.outcome,
                "reason": result.reason,
            }
            for result in results
        ],
    }
