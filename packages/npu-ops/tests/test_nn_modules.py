import copy
import io
import pickle

import pytest
import torch
from torch import nn


def test_to_keeps_the_identity_of_parameters_and_buffers_follow():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = list(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to("npu")
    after = list(model.parameters())
    assert all(old is new for old, new in zip(before, after, strict=True))
    assert {p.device.type for p in after} == {b.device.type for b in model.buffers()} == {"npu"}
    model(torch.ones(3, 4, device="npu")).sum().backward()
    weight = model[0].bias.detach().clone()
    optimizer.step()
    assert not torch.equal(model[0].bias, weight) or model[0].bias.grad.abs().sum().item() < 1e-5
    model.cpu()
    assert all(old is new for old, new in zip(before, model.parameters(), strict=True))


def test_batch_norm_updates_its_statistics_as_on_cpu():
    host = nn.BatchNorm2d(3)
    there = copy.deepcopy(host).to("npu")
    x = torch.randn(4, 3, 5, 5)
    for _ in range(3):
        torch.testing.assert_close(there(x.to("npu")).cpu(), host(x))
    assert torch.equal(there.running_mean.cpu(), host.running_mean)
    assert torch.equal(there.running_var.cpu(), host.running_var)
    assert there.num_batches_tracked.item() == 3
    torch.testing.assert_close(there.eval()(x.to("npu")).cpu(), host.eval()(x))


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_embedding_gradient_accumulates_repeated_rows(is_sparse):
    host = nn.Embedding(10, 4, padding_idx=0, sparse=is_sparse)
    there = copy.deepcopy(host).to("npu")
    index = torch.tensor([[1, 2, 0], [2, 3, 3]])
    host(index).square().sum().backward()
    there(index.to("npu")).square().sum().backward()
    ours, theirs = there.weight.grad, host.weight.grad
    assert ours.is_sparse is is_sparse
    assert torch.equal(ours.to_dense().cpu(), theirs.to_dense())


def test_gradient_clipping():
    host = nn.Linear(8, 8)
    there = copy.deepcopy(host).to("npu")
    x = torch.randn(4, 8) * 100
    norms = []
    for model, data in ((host, x), (there, x.to("npu"))):
        model(data).square().sum().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    assert norms[1].device.type == "npu"
    assert norms[1].item() == norms[0].item()
    assert torch.equal(there.weight.grad.cpu(), host.weight.grad)


@pytest.mark.parametrize(
    "optimizer, options",
    [
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"foreach": False}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
        (torch.optim.SGD, {"lr": 0.1, "fused": True}),
        (torch.optim.RMSprop, {}),
        (torch.optim.Adagrad, {}),
        (torch.optim.LBFGS, {}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_optimizer_steps_equal_the_cpu(optimizer, options):
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    there = copy.deepcopy(host).to("npu")
    x = torch.randn(16, 4)
    for model, data in ((host, x), (there, x.to("npu"))):
        stepper = optimizer(model.parameters(), **options)

        def loss(stepper=stepper, model=model, data=data):
            stepper.zero_grad()
            value = model(data).square().mean()
            value.backward()
            return value

        for _ in range(3):
            stepper.step(loss)
    for theirs, ours in zip(host.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach())


def test_state_dict_moves_both_ways():
    there = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to("npu")
    state = there.state_dict()
    assert {value.device.type for value in state.values()} == {"npu"}
    host = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    host.load_state_dict(state)
    assert torch.equal(host[0].weight, there[0].weight.cpu())
    with torch.no_grad():
        host[0].weight.add_(1)
    there.load_state_dict(host.state_dict())
    assert torch.equal(there[0].weight.cpu(), host[0].weight)


def test_deepcopy_of_tensors_and_modules():
    tensor = torch.randn(3, device="npu", requires_grad=True)
    twin = copy.deepcopy(tensor)
    assert twin.device.type == "npu"
    assert twin.requires_grad
    assert twin.data_ptr() != tensor.data_ptr()
    assert torch.equal(twin, tensor)
    tied = nn.ModuleList([nn.Linear(2, 2)] * 2).to("npu")
    twins = copy.deepcopy(tied)
    assert twins[0].weight is twins[1].weight


def test_pickle_and_save_keep_device_views_and_sharing():
    base = torch.arange(12.0, device="npu").view(3, 4)
    saved = {"base": base, "view": base[:, ::2], "parameter": nn.Parameter(base.clone())}
    assert torch.equal(pickle.loads(pickle.dumps(base)), base)
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)
    assert {value.device.type for value in loaded.values()} == {"npu"}
    assert torch.equal(loaded["view"], base[:, ::2])
    loaded["base"].zero_()
    assert loaded["view"].sum().item() == 0
    buffer.seek(0)
    on_host = torch.load(buffer, map_location="cpu")
    assert torch.equal(on_host["base"], base.cpu())


def test_load_from_cpu_file_onto_npu():
    buffer = io.BytesIO()
    torch.save(torch.ones(3), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, map_location="npu")
    assert loaded.device.type == "npu"
    assert loaded.tolist() == [1.0] * 3


def test_mixed_precision_module():
    model = nn.Linear(4, 4).to("npu", torch.bfloat16)
    assert model(torch.ones(2, 4, dtype=torch.bfloat16, device="npu")).dtype == torch.bfloat16


def test_normalization_with_statistics_that_stay():
    def run(device):
        x, one = torch.arange(6.0, device=device).reshape(3, 2), torch.ones(2, device=device)
        return torch.ops.aten._batch_norm_no_update(x, one, one, one, one, 0.1, 1e-5)[0]

    torch.testing.assert_close(run("npu").cpu(), run("cpu"))
