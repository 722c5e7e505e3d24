"""The command ``python -m npu_runtime.driver_conformance``: its options and exit codes."""

import argparse
import json
import sys
from collections.abc import Sequence

from npu_runtime.driver_conformance.bench import Bench
from npu_runtime.driver_conformance.driver_table import ABI_VERSION
from npu_runtime.driver_conformance.isolation import LastCall, run_isolated
from npu_runtime.driver_conformance.locate import DriverUnderTest, find_driver
from npu_runtime.driver_conformance.run import (
    as_json,
    as_table,
    exit_code,
    run_checks,
    select_checks,
)
from npu_runtime.errors import NpuError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    0 if every check passed or is unsupported, 1 if one failed, 2 if there is nothing to run:
    an unknown driver, a library that does not load, a pattern that no check matches.
    """
    options = _parser().parse_args(arguments)
    try:
        driver = find_driver(options.driver, device=options.device)
    except NpuError as error:
        print(error, file=sys.stderr)
        return 2
    checks = select_checks(options.pattern)
    if not checks:
        print(f"conformance: no check matches {options.pattern!r}", file=sys.stderr)
        return 2
    if problem := _what_keeps_it_from_loading(driver):
        print(f"conformance: {problem}", file=sys.stderr)
        return 2
    results = run_checks(driver, checks, timeout_s=options.timeout)
    if options.json:
        print(json.dumps(as_json(driver.name, results), indent=2))
    else:
        print(as_table(driver.name, results))
    return exit_code(results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m npu_runtime.driver_conformance",
        description="Checks every function of a driver's table against include/npu/driver.h.",
    )
    parser.add_argument("--driver", required=True, help="openvino, sim, or an installed vendor's")
    parser.add_argument("--device", help="the device to open; without it the driver chooses")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "-k",
        dest="pattern",
        metavar="PATTERN",
        help="only checks whose function.check contains PATTERN; * matches anything",
    )
    parser.add_argument(
        "--timeout", type=float, default=60, metavar="S", help="seconds for one check (60)"
    )
    return parser


def _what_keeps_it_from_loading(driver: DriverUnderTest) -> str:
    """Returns an error sentence or nothing: checks need this runtime's table layout."""

    def probe(last_call: LastCall) -> str:
        try:
            version = Bench(driver, last_call).table.abi_version
        except (OSError, AttributeError) as error:
            return str(error)
        if version != ABI_VERSION:
            return f"its table has version {version}, this test knows {ABI_VERSION}"
        return ""

    ended = run_isolated(probe, timeout_s=60)
    problem = ended.problem or ended.value
    return f"the library of driver {driver.name} does not serve: {problem}" if problem else ""


if __name__ == "__main__":
    sys.exit(main())
