"""torch.compile for NPUs: captured graphs become OpenVINO programs.

The device and the running of programs live in npu_runtime, eager kernels in npu_ops.
"""
