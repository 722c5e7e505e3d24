"""Training on npu over several processes, against the same training in one.

Started by test_distributed.py, one process per rank, with RANK, WORLD_SIZE and DIRECTORY.
"""

import contextlib
import copy
import json
import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import transformers
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
DIRECTORY = Path(os.environ["DIRECTORY"])
STEPS = 3
BATCH = 4  # over all ranks

CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def llama() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config).to("npu")


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, 64, (BATCH, 12), generator=generator) for _ in range(STEPS)]


def my_part(batch: torch.Tensor) -> torch.Tensor:
    return batch.chunk(SIZE)[RANK].to("npu")


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(input_ids=tokens, labels=tokens).loss


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)


def trained_alone() -> dict[str, torch.Tensor]:
    model = llama()
    optimizer = optimizer_of(model)
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch.to("npu")).backward()
        optimizer.step()
    return {name: value.cpu() for name, value in model.state_dict().items()}


def train(model: torch.nn.Module) -> None:
    optimizer = optimizer_of(model)
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, my_part(batch)).backward()
        optimizer.step()


def assert_same(state: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert state.keys() == expected.keys()
    for name, value in state.items():
        torch.testing.assert_close(value.cpu(), expected[name], rtol=1e-4, atol=1e-5, msg=name)


def whole(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = model.state_dict()
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in state.items()
    }


@case
def ddp() -> None:
    model = DistributedDataParallel(llama())
    train(model)
    assert_same(model.module.state_dict(), trained_alone())


@case
def ddp_with_gradients_as_views_of_small_buckets() -> None:
    model = DistributedDataParallel(llama(), gradient_as_bucket_view=True, bucket_cap_mb=0.01)
    train(model)
    assert all(parameter.grad.device.type == "npu" for parameter in model.parameters())
    assert_same(model.module.state_dict(), trained_alone())


@case
def ddp_that_accumulates_without_talking() -> None:
    model = DistributedDataParallel(llama())
    alone = llama()
    tokens = batches()[0]
    for index, row in enumerate(my_part(tokens)):
        last = index == BATCH // SIZE - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss_of(model, row[None]).backward()
    for row in tokens.to("npu"):
        (loss_of(alone, row[None]) / SIZE).backward()
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad.cpu(), rtol=1e-4, atol=1e-5)


@case
def ddp_with_a_hook_that_compresses_gradients() -> None:
    model = DistributedDataParallel(llama())
    model.register_comm_hook(None, fp16_compress_hook)
    alone = llama()
    tokens = batches()[0]
    loss_of(model, my_part(tokens)).backward()
    loss_of(alone, tokens.to("npu")).backward()
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad.cpu(), rtol=1e-2, atol=1e-4)


@case
def ddp_keeps_buffers_and_unused_parameters_in_step() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3)
            self.used = torch.nn.Linear(3, 2)
            self.unused = torch.nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(self.norm(x))

    torch.manual_seed(RANK)  # rank 0's values win
    model = DistributedDataParallel(Net().to("npu"), find_unused_parameters=True)
    for step in range(2):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + RANK))
        model(x.to("npu")).sum().backward()
    model.eval()
    model(torch.zeros(1, 3).to("npu"))  # sends the buffers round
    values = [model.module.used.weight.detach(), model.module.used.weight.grad]
    for value in values:
        everybody = [torch.empty_like(value) for _ in range(SIZE)]
        dist.all_gather(everybody, value)
        assert all(torch.equal(value.cpu(), other.cpu()) for other in everybody)


def fsdp2() -> torch.nn.Module:
    mesh = init_device_mesh("npu", (SIZE,))
    model = llama()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@case
def fully_sharded() -> None:
    model = fsdp2()
    train(model)
    weight = model.model.layers[0].mlp.up_proj.weight
    assert isinstance(weight, DTensor)
    assert weight.to_local().shape[0] == 48 // SIZE
    assert weight.to_local().device.type == "npu"
    assert_same(whole(model), trained_alone())


@case
def fully_sharded_first_form() -> None:
    model = FullyShardedDataParallel(
        llama(), device_id=torch.device("npu", 0), use_orig_params=True
    )
    train(model)
    with FullyShardedDataParallel.summon_full_params(model):
        state = {name: value.clone() for name, value in model.module.state_dict().items()}
    assert_same(state, trained_alone())


@case
def checkpoint_of_a_sharded_model() -> None:
    model = fsdp2()
    train(model)
    saved = {name: value.clone() for name, value in whole(model).items()}
    path = DIRECTORY / "model"
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=path)
    restored = fsdp2()
    state = {"model": restored.state_dict()}
    checkpoint.load(state, checkpoint_id=path)
    restored.load_state_dict(state["model"])
    assert_same(whole(restored), {name: value.cpu() for name, value in saved.items()})


@case
def checkpoint_of_sharded_and_whole_tensors() -> None:
    mesh = init_device_mesh("npu", (SIZE,))
    values = torch.arange(24.0).reshape(8, 3)

    def state(factor: float) -> dict[str, object]:
        sharded = distribute_tensor((values * factor).to("npu"), mesh, [Shard(0)])
        return {"sharded": sharded, "whole": torch.full((3,), factor).to("npu"), "step": factor}

    path = DIRECTORY / "checkpoint"
    checkpoint.save(state(1), checkpoint_id=path)
    restored = state(0)
    checkpoint.load(restored, checkpoint_id=path)
    assert restored["sharded"].to_local().device.type == "npu"
    assert torch.equal(restored["sharded"].full_tensor().cpu(), values)
    assert restored["whole"].tolist() == [1, 1, 1]
    assert restored["step"] == 1


@case
def dtensor() -> None:
    mesh = init_device_mesh("npu", (SIZE,))
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(8, 8, generator=generator) for _ in range(2))
    left = distribute_tensor(a.to("npu"), mesh, [Shard(0)])
    right = distribute_tensor(b.to("npu"), mesh, [Shard(0)])
    product = left @ right
    assert product.device.type == "npu"
    torch.testing.assert_close(product.full_tensor().cpu(), a @ b)
    columns = left.redistribute(mesh, [Shard(1)])
    assert columns.to_local().shape == (8, 8 // SIZE)
    torch.testing.assert_close(columns.full_tensor().cpu(), a)
    total = distribute_tensor(a.to("npu"), mesh, [Replicate()]).sum()
    torch.testing.assert_close(total.full_tensor().cpu(), a.sum())


@case
def a_mesh_of_two_dimensions() -> None:
    mesh = init_device_mesh("npu", (SIZE // 2, 2), mesh_dim_names=("data", "model"))
    a = torch.arange(32.0).reshape(8, 4)
    tensor = distribute_tensor(a.to("npu"), mesh, [Shard(0), Shard(1)])
    assert tensor.to_local().shape == (8 // (SIZE // 2), 2)
    torch.testing.assert_close(tensor.full_tensor().cpu(), a)
    count = torch.ones(1).to("npu")
    dist.all_reduce(count, group=mesh["model"].get_group())
    assert count.item() == 2


@case
def a_mesh_of_a_group_that_is_bound_to_its_device() -> None:
    # As init_process_group(device_id=...) leaves it.
    dist.distributed_c10d._get_default_group().bound_device_id = torch.device("npu", 0)
    mesh = init_device_mesh("npu", (1, SIZE), mesh_dim_names=("data", "model"))
    total = torch.ones(3, device="npu")
    dist.all_reduce(total, group=mesh["model"].get_group())
    assert total.tolist() == [SIZE] * 3


@case
def tensor_parallel() -> None:
    mesh = init_device_mesh("npu", (SIZE,))
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
    reference = copy.deepcopy(model)
    parallel = parallelize_module(
        model.to("npu"), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
    result = parallel(x.to("npu"))
    result.sum().backward()
    expected = reference(x)
    expected.sum().backward()
    torch.testing.assert_close(result.detach().cpu(), expected.detach())
    grad = parallel[0].weight.grad.full_tensor().cpu()
    torch.testing.assert_close(grad, reference[0].weight.grad)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    dist.init_process_group(
        os.environ.get("BACKEND") or None,
        init_method=f"file://{DIRECTORY}/rendezvous",
        rank=RANK,
        world_size=SIZE,
    )
    outcome = {}
    for name, function in CASES.items():
        try:
            function()
            outcome[name] = "passed"
        except Exception:  # noqa: BLE001  # the test that asks for this case shows it
            outcome[name] = traceback.format_exc()
        dist.barrier(device_ids=[0])
    (DIRECTORY / f"rank{RANK}.json").write_text(json.dumps(outcome))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
