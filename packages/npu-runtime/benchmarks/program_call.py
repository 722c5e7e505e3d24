"""Overhead of a program's call from torch tensors to torch tensors, over the bare request.

    python packages/npu-runtime/benchmarks/program_call.py

Prints the median microseconds of one call of a tiny model (relu of 16 floats): through OpenVINO's
own Python request with its tensors bound once (the bare inference, the peer), through a Program,
through a Session, and through OpenVINO's Python call that takes and gives arrays. The number of
vendor calls limits a call: one bind for each port with changed memory, and the inference.
"""

import tempfile

import numpy as np
import openvino as ov
import torch
from _timing import F32, median_us, relu_model, save_relu_model

from npu_runtime import load_program


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = load_program(save_relu_model(folder), name="relu", options=F32)
    session = program.session()
    compiled = ov.Core().compile_model(relu_model(), "CPU", F32)
    request = compiled.create_infer_request()
    array = np.zeros(16, np.float32)
    request.set_input_tensor(ov.Tensor(array, shared_memory=True))
    tensor = torch.zeros(16)
    bare = median_us(request.infer)
    rows = [
        ("bare inference, bound once (OpenVINO Python)", bare),
        ("Program.run, cpu tensors", median_us(lambda: program.run([tensor]))),
        ("Session.run, cpu tensors", median_us(lambda: session.run([tensor]))),
        ("CompiledModel(array) (OpenVINO Python)", median_us(lambda: compiled(array))),
    ]
    for label, cost in rows:
        print(f"{label:46} {cost:7.2f} us  {cost / bare:5.2f}x")


if __name__ == "__main__":
    main()
