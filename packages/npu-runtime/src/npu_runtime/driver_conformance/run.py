"""Runs the checks, each in a child process, and reports their results as a table or as JSON."""

import fnmatch
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from npu_runtime.driver_conformance.bench import Bench, CheckFailure, Unsupported
from npu_runtime.driver_conformance.checks import ALL_CHECKS
from npu_runtime.driver_conformance.isolation import LastCall, run_isolated
from npu_runtime.driver_conformance.locate import DriverUnderTest
from npu_runtime.driver_conformance.registry import Check

__all__ = [
    "BLOCKED",
    "FAIL",
    "PASS",
    "UNSUPPORTED",
    "Result",
    "as_json",
    "as_table",
    "exit_code",
    "run_checks",
    "select_checks",
]

PASS = "pass"
FAIL = "fail"
BLOCKED = "blocked"  # another function failed before the one under test ran
UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class Result:
    """The result of one check."""

    field: str  # the checked table field
    check: str  # the rule
    outcome: str  # ``pass``, ``fail``, ``blocked`` or ``unsupported``
    reason: str  # the reason, if it did not pass


def select_checks(pattern: str | None = None) -> list[Check]:
    """The checks whose ``field.name`` contains the pattern, or matches it where it has a ``*``."""
    checks = ALL_CHECKS
    if not pattern:
        return checks
    wild = pattern if "*" in pattern else f"*{pattern}*"
    return [item for item in checks if fnmatch.fnmatchcase(item.label, wild)]


def run_checks(
    driver: DriverUnderTest,
    checks: Sequence[Check],
    *,
    timeout_s: float = 60,
    on_result: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Runs the checks on a driver.

    Args:
        driver: which.
        checks: from ``select_checks``.
        timeout_s: time limit of one check, which fails beyond it.
        on_result: called with each result.
    """
    results = []
    for item in checks:
        result = _run_one(driver, item, timeout_s)
        on_result(result)
        results.append(result)
    return results


def _run_one(driver: DriverUnderTest, item: Check, timeout_s: float) -> Result:
    def body(last_call: LastCall) -> list[str]:
        return _outcome(driver, item, last_call)

    ended = run_isolated(body, timeout_s=timeout_s)
    if ended.problem:
        return Result(item.field, item.name, FAIL, ended.problem)
    outcome, reason = _pair(ended.value)
    return Result(item.field, item.name, outcome, reason)


def _outcome(driver: DriverUnderTest, item: Check, last_call: LastCall) -> list[str]:
    """Runs a check in the child."""
    try:
        bench = Bench(driver, last_call)
        if item.is_open:
            bench.open()
        item.body(bench)
    except Unsupported as reason:
        return [UNSUPPORTED, str(reason)]
    except CheckFailure as failure:
        if failure.function in ("", item.field):
            return [FAIL, failure.reason]
        return [BLOCKED, f"{failure.function} {failure.reason}"]
    except OSError as error:
        return [FAIL, f"{type(error).__name__}: {error}"]
    return [PASS, ""]


def _pair(value: Any) -> tuple[str, str]:
    outcome, reason = value
    return str(outcome), str(reason)


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
    """Summarizes the run in one line."""
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
    """Returns the results as JSON."""
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
