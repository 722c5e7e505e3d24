"""Import time that the platform adds to ``import torch`` and to other libraries, in new processes.

    python packages/npu-runtime/benchmarks/import_time.py [--runs N] [--modules torch accelerate]

Imports the modules without the platform, with it but without patches of Hugging Face's libraries
(NPU_HUGGINGFACE=0), and with all of it, in turns, so that other load affects all of them. Prints
the smallest and the median times, and the differences; the aim is 30 ms at most for torch, and 5 ms
for the patches. "Without" is torch's own switch TORCH_DEVICE_BACKEND_AUTOLOAD=0 and then the search
for backends among the installed packages, which the switch turns off and which torch also does
without backends. CPU time is printed next to wall time, because it hardly depends on other load; on
a busy machine, put `chrt -f 10 taskset -c 1` before the command.

What limits it: torch's dispatcher takes about 3 us for each kernel registered (1,600 of them, on
five kinds of tensor) and 1.5 ms for each of six catch-alls; the rest is reading some eighty Python
modules, of which dataclasses are a third. Bytecode is kept in a folder of the benchmark's own, as
pip writes it for installed wheels: with PYTHONDONTWRITEBYTECODE, which images for containers set,
Python would compile our modules each time, which takes 30 ms, but not torch's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

MEASURE = """
import importlib, json, sys, time
wall, processor = time.perf_counter(), time.process_time()
import torch
if not {expected}:
    from importlib.metadata import entry_points
    list(entry_points(group="torch.backends"))
for name in {modules}:
    importlib.import_module(name)
print(json.dumps([time.perf_counter() - wall, time.process_time() - processor]))
assert hasattr(torch, "npu") == {expected}
"""
SIDES = {
    "without the platform": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    "with it, libraries unpatched": {"NPU_HUGGINGFACE": "0"},
    "with it": {},
}


def import_ms(modules: list[str], side: str, bytecode: str) -> tuple[float, float]:
    """Times by the clock and of the processor."""
    unset = ("TORCH_DEVICE_BACKEND_AUTOLOAD", "NPU_HUGGINGFACE", "PYTHONDONTWRITEBYTECODE")
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    script = MEASURE.format(modules=modules, expected=side != "without the platform")
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=inherited | {"PYTHONPYCACHEPREFIX": bytecode} | SIDES[side],
        capture_output=True,
        text=True,
        check=True,
    )
    wall, processor = json.loads(done.stdout.splitlines()[-1])
    return wall * 1000, processor * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--modules", nargs="+", default=["torch"])
    arguments = parser.parse_args()
    modules = arguments.modules
    with tempfile.TemporaryDirectory(prefix="npu-bytecode-") as bytecode:
        import_ms(modules, "with it", bytecode)  # warms the page cache, and writes bytecode
        rounds = [
            {side: import_ms(modules, side, bytecode) for side in SIDES}
            for _ in range(arguments.runs)
        ]
    print(f"import {', '.join(modules)}: {arguments.runs} runs, ms")
    print(f"{'':36}{'clock':>18}{'processor':>18}")
    print(f"{'':36}" + f"{'least':>9}{'median':>9}" * 2)
    plain = {}
    for side in SIDES:
        kinds = [[one[side][kind] for one in rounds] for kind in (0, 1)]
        numbers = [take(kind) for kind in kinds for take in (min, statistics.median)]
        print(f"{side:36}" + "".join(f"{number:>9.1f}" for number in numbers))
        plain[side] = numbers
    for label, before, after in (
        ("added by the platform", "without the platform", "with it"),
        ("of it by patches of libraries", "with it, libraries unpatched", "with it"),
    ):
        pairs = zip(plain[before], plain[after], strict=True)
        print(f"{label:36}" + "".join(f"{new - old:>9.1f}" for old, new in pairs))


if __name__ == "__main__":
    main()
