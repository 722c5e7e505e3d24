"""A program for CUDA, word by word, with one import before it."""

import subprocess
import sys
import textwrap

PROGRAM = """
import os
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main():
    assert torch.cuda.is_available()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.cuda.set_device(0)
    torch.cuda.manual_seed_all(0)
    torch.manual_seed(0)
    meeting = "file://" + os.environ["RENDEZVOUS"]
    dist.init_process_group("nccl", rank=0, world_size=1, init_method=meeting)
    device = torch.device("cuda", torch.cuda.current_device())
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)).cuda()
    model = DistributedDataParallel(model, device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    inputs = torch.randn(64, 8)
    data = TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=1, pin_memory=True)
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    losses = []
    for epoch in range(4):
        total = 0.0
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.cuda(non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device_type="cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
        losses.append(total)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0
    state = {"model": model.module.state_dict(), "rng": torch.cuda.get_rng_state()}
    torch.save(state, os.environ["CHECKPOINT"])
    loaded = torch.load(os.environ["CHECKPOINT"], map_location="cuda:0")
    model.module.load_state_dict(loaded["model"])
    print(losses[-1] < losses[0] / 2, next(model.parameters()).device, dist.get_backend())
    print(torch.cuda.max_memory_allocated() > 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


def test_it_trains(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import npu_runtime.transfer_to_npu\n" + PROGRAM)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={
            "PATH": "/usr/bin:/bin",
            "RENDEZVOUS": str(tmp_path / "rendezvous"),
            "CHECKPOINT": str(tmp_path / "checkpoint.pt"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True npu:0 gloo", "True"]


def test_functions_compiled_after_the_import_may_name_the_device(run_python):
    done = run_python(
        textwrap.dedent("""
            import npu_runtime.transfer_to_npu
            import torch

            @torch.compile(backend="aot_eager", fullgraph=True)
            def function(x):
                y = x.to("cuda") + torch.arange(2, device="cuda")
                return y + x.new_ones(2, device=x.device)

            print(function(torch.ones(2, device="cuda")))
        """)
    )
    assert done.stdout.strip() == "tensor([2., 3.], device='npu:0')", done.stderr


def test_importing_it_opens_no_device_and_can_be_taken_back(run_python):
    done = run_python(
        textwrap.dedent("""
            import torch
            import npu_runtime.transfer_to_npu as transfer
            print(transfer.is_active(), "libopenvino" in open("/proc/self/maps").read())
            transfer.deactivate()
            print(transfer.is_active(), torch.cuda.is_available())
        """)
    )
    assert done.stdout.split() == ["True", "False", "False", "False"], done.stderr
