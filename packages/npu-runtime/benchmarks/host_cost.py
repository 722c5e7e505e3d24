"""Host cost of streams, events and enqueued work, against calls of the same work on the CPU.

    python packages/npu-runtime/benchmarks/host_cost.py

Prints the median microseconds of one call, on the OpenVINO driver and on the simulated device, and
its ratio to one element-wise op on a CPU tensor of one element (``x.relu_()``, the cheapest call
of torch that does something). "enqueued" is the host's share of a program's run on the simulated
device: checking ports, taking a request, a fresh output block, keeping the blocks until the run's
end. What limits it: a stream or event call is one call from Python into C++ and one call of the
driver's table; switching to a stream and back is four of them and an object of Python's.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

import torch
from _timing import F32, median_us, save_relu_model

from npu_runtime import device_info, load_program

DRIVERS = ("openvino", "sim")


def tiny_program(folder: str) -> Callable[[], object]:
    program = load_program(save_relu_model(folder), name="relu", options=F32)
    inputs = [torch.zeros(16, device="npu")]
    return lambda: program.run(inputs)


def switch(stream: torch.Stream) -> None:
    with torch.npu.stream(stream):
        pass


def measure(driver: str) -> None:
    one = torch.zeros(1)
    peer = median_us(one.relu_)
    stream, event = torch.npu.Stream(), torch.npu.Event()
    event.record()
    with tempfile.TemporaryDirectory() as folder:
        run = tiny_program(folder)
        rows = [
            ("relu_ of one element on cpu (the peer)", peer),
            ("a Python function that does nothing", median_us(lambda: None)),
            ("torch.npu.current_stream()", median_us(torch.npu.current_stream)),
            ("with torch.npu.stream(s): pass", median_us(lambda: switch(stream))),
            ("torch.npu.Stream()", median_us(torch.npu.Stream)),
            ("event.record()", median_us(event.record)),
            ("event.query()", median_us(event.query)),
            ("stream.wait_event(event)", median_us(lambda: stream.wait_event(event))),
            ("torch.npu.synchronize(), nothing pending", median_us(torch.npu.synchronize)),
            (
                "Program.run, run in line" if driver == "openvino" else "Program.run, enqueued",
                median_us(run, calls=500, before=torch.npu.synchronize),
            ),
        ]
    print(f"{device_info().driver}: {device_info().full_name}")
    for label, cost in rows:
        print(f"  {label:44}{cost:8.2f} us{cost / peer:8.2f}x")


def main() -> None:
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        return
    for driver in DRIVERS:
        subprocess.run(
            [sys.executable, __file__, driver], env=os.environ | {"NPU_DRIVER": driver}, check=True
        )


if __name__ == "__main__":
    main()
