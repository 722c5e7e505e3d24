"""A user's script for torchrun: it imports only torch."""

import torch
import torch.distributed as dist

dist.init_process_group("cpu:gloo,npu:npu_gloo")
tensor = torch.tensor([dist.get_rank() + 1.0], device="npu")
dist.all_reduce(tensor)
on_cpu = torch.tensor([1])
dist.all_reduce(on_cpu)
if dist.get_rank() == 0:
    print("sum", tensor.item(), "ranks", on_cpu.item())
dist.destroy_process_group()
