"""What the platform adds to ``import torch``, in fresh processes.

    python packages/npu-runtime/benchmarks/import_time.py [--runs N]

Imports torch with and without the platform, one after the other so that both meet the same machine,
and prints the medians and their difference; the aim is 30 ms at most. "Without" is torch's own
switch TORCH_DEVICE_BACKEND_AUTOLOAD=0 and then the search for backends among the installed
packages, which the switch turns off and which torch does also where no backend is installed. The
time of the processor is printed beside the clock's, because it hardly depends on what else the
machine does.

What limits it: torch's dispatcher takes about 3 us for each kernel registered (1,600 of them, on
five kinds of tensor) and 1.5 ms for each of six catch-alls; the rest is reading some thirty Python
modules. Measure installed wheels: from an editable install, or with PYTHONDONTWRITEBYTECODE,
Python compiles those modules each time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

MEASURE = """
import json, time
wall, processor = time.perf_counter(), time.process_time()
import torch
if not {expected}:
    from importlib.metadata import entry_points
    list(entry_points(group="torch.backends"))
print(json.dumps([time.perf_counter() - wall, time.process_time() - processor]))
assert hasattr(torch, "npu") == {expected}
"""


def import_ms(*, platform: bool) -> tuple[float, float]:
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(platform))}
    script = MEASURE.format(expected=platform)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    wall, processor = json.loads(done.stdout)
    return wall * 1000, processor * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    import_ms(platform=True)  # warms the page cache, and writes bytecode where that is allowed
    pairs = [(import_ms(platform=False), import_ms(platform=True)) for _ in range(runs)]
    print(f"{'import torch, median of ' + str(runs):28}{'clock':>10}{'processor':>12}  (ms)")
    medians = []
    for label, side in (("without the platform", 0), ("with it", 1)):
        medians.append([statistics.median(pair[side][kind] for pair in pairs) for kind in (0, 1)])
        print(f"{label:28}{medians[-1][0]:>10.1f}{medians[-1][1]:>12.1f}")
    added = [statistics.median(pair[1][kind] - pair[0][kind] for pair in pairs) for kind in (0, 1)]
    print(f"{'added (median of pairs)':28}{added[0]:>10.1f}{added[1]:>12.1f}")


if __name__ == "__main__":
    main()
