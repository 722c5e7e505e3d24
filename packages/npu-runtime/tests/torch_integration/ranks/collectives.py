"""Every operation of torch.distributed on npu tensors and on CPU tensors, in one process per rank.

Started by test_distributed.py with RANK, WORLD_SIZE and DIRECTORY; writes one line per case.
"""

import json
import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
LAST = SIZE - 1

Case = Callable[[str], list[torch.Tensor]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def values(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, other ones on each rank."""
    generator = torch.Generator().manual_seed(1000 + RANK)
    return torch.randint(0, 9, shape, generator=generator).to(dtype).to(device)


def empty(*shape: int, device: str) -> torch.Tensor:
    return torch.full(shape, -1.0).to(device)


def empties(device: str, *shape: int) -> list[torch.Tensor]:
    return [empty(*shape, device=device) for _ in range(SIZE)]


@case
def broadcast(device):
    tensor = values(3, 4, device=device)
    dist.broadcast(tensor, src=LAST)
    return [tensor]


@case
def all_reduce(device):
    results = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        tensor = values(5, 3, device=device)
        dist.all_reduce(tensor, op=op)
        results.append(tensor)
    return results


@case
def all_reduce_of_other_dtypes(device):
    results = []
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64,
                  torch.uint8):  # fmt: skip
        tensor = values(7, device=device, dtype=dtype)
        dist.all_reduce(tensor)
        results.append(tensor)
    flags = values(5, device=device) > 4
    flags = flags.to(torch.uint8)
    dist.all_reduce(flags, op=dist.ReduceOp.BOR)
    pair = torch.complex(values(3, device=device), values(3, device=device))
    dist.all_reduce(pair)
    return [*results, flags, pair]


@case
def all_reduce_of_a_view(device):
    whole = values(4, 6, device=device)
    dist.all_reduce(whole[1:3])
    return [whole]


@case
def all_reduce_of_a_transposed_tensor(device):
    tensor = values(4, 6, device=device).t()
    dist.all_reduce(tensor)
    return [tensor]


def scattered(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with other strides on each rank; contiguous on the CPU, as Gloo needs it."""
    if tensor.device.type == "cpu":
        return tensor
    if RANK % 2:
        return tensor.t().contiguous().t()
    wide = torch.full((tensor.shape[0], 2 * tensor.shape[1]), -2.0).to(tensor.device)
    view = wide[:, ::2]
    view.copy_(tensor)
    return view


def scattered_values(rows: int, columns: int, *, device: str) -> torch.Tensor:
    return scattered(values(rows, columns, device=device))


def scattered_empties(device: str) -> list[torch.Tensor]:
    return [scattered(tensor) for tensor in empties(device, 2, 3)]


@case
def tensors_that_are_not_contiguous_in_place(device):
    tensors = [scattered_values(2, 3, device=device) for _ in range(6)]
    dist.broadcast(tensors[0], src=LAST)
    dist.all_reduce(tensors[1])
    dist.all_reduce_coalesced(tensors[2:4])
    dist.reduce(tensors[4], dst=0)
    later = dist.all_reduce(tensors[5], async_op=True)
    summed = later.get_future().then(lambda done: done.value()[0] + 0).wait()
    return [*tensors[:4], *tensors[4 : 4 + (RANK == 0)], tensors[5], summed]


@case
def elements_between_those_of_a_view_stay(device):
    whole = values(4, 6, device=device)
    if device == "cpu":
        columns = whole[:, 1::2].contiguous()
        dist.all_reduce(columns)
        whole[:, 1::2] = columns
    else:
        dist.all_reduce(whole[:, 1::2])
    return [whole]


@case
def inputs_and_outputs_that_are_not_contiguous(device):
    gathered, exchanged = scattered_empties(device), scattered_empties(device)
    part = scattered_values(2, 3, device=device)
    dist.all_gather(gathered, part)
    collected = scattered_empties(device) if RANK == LAST else None
    dist.gather(part, collected, dst=LAST)
    parts = [scattered_values(2, 3, device=device) + i for i in range(SIZE)]
    dist.all_to_all(exchanged, parts)
    outputs = [scattered(empty(2, 3, device=device)) for _ in range(2)]
    dist.scatter(outputs[0], parts if RANK == 0 else None, src=0)
    dist.reduce_scatter(outputs[1], parts)
    return [*gathered, *(collected or []), *exchanged, *outputs]


@case
def single_tensors_that_are_not_contiguous(device):
    gathered = scattered(empty(2 * SIZE, 3, device=device))
    dist.all_gather_single(gathered, scattered_values(2, 3, device=device))
    reduced = scattered(empty(2, 3, device=device))
    whole = scattered_values(2 * SIZE, 3, device=device)
    dist.reduce_scatter_single(reduced, whole)
    exchanged = scattered(empty(2 * SIZE, 3, device=device))
    dist.all_to_all_single(exchanged, whole)
    return [gathered, reduced, exchanged]


@case
def sent_tensors_that_are_not_contiguous(device):
    received = scattered(empty(2, 3, device=device))
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, scattered_values(2, 3, device=device), (RANK + 1) % SIZE),
            dist.P2POp(dist.irecv, received, (RANK - 1) % SIZE),
        ]
    )
    for work in works:
        work.wait()
    return [received]


@case
def all_reduce_of_nothing_and_of_a_scalar(device):
    nothing = torch.empty(0).to(device)
    scalar = torch.tensor(float(RANK)).to(device)
    dist.all_reduce(nothing)
    dist.all_reduce(scalar)
    return [nothing, scalar]


@case
def all_reduce_later(device):
    tensors = [values(1000, device=device) for _ in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    assert all(work.wait() for work in works)
    assert all(work.is_completed() for work in works)
    assert works[0].result()[0].device.type == device
    return tensors


@case
def all_reduce_whose_tensor_is_dropped(device):
    # The handle alone keeps the memory; new tensors must not get it meanwhile.
    works = [dist.all_reduce(torch.ones(4096).to(device), async_op=True) for _ in range(20)]
    others = [torch.zeros(4096).to(device) for _ in range(20)]
    for work in works:
        work.wait()
    return [*others, works[-1].result()[0]]


@case
def future_of_an_all_reduce(device):
    tensor = values(4, device=device)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).wait()
    assert doubled.device.type == device
    return [tensor, doubled]


@case
def reduce(device):
    tensor = values(4, device=device)
    dist.reduce(tensor, dst=0)
    return [tensor] if RANK == 0 else []


@case
def all_gather(device):
    outputs = empties(device, 2, 3)
    dist.all_gather(outputs, values(2, 3, device=device))
    return outputs


@case
def all_gather_single(device):
    output = empty(2 * SIZE, 3, device=device)
    dist.all_gather_single(output, values(2, 3, device=device))
    return [output]


@case
def all_gather_into_another_shape(device):
    # Gloo itself refuses these, so the same is gathered on the CPU into a list.
    if device == "cpu":
        lists = [empties(device, 2, 3), empties(device), empties(device, 2, 3)]
        inputs = [values(2, 3, device=device), values(device=device), values(2, 3, device=device)]
        for outputs, part in zip(lists, inputs, strict=True):
            dist.all_gather(outputs, part)
        flat, scalars, stacked = map(torch.stack, lists)
        return [flat.flatten(), scalars, stacked]
    flat = empty(SIZE * 6, device=device)
    dist.all_gather_single(flat, values(2, 3, device=device))
    scalars = empty(SIZE, device=device)
    dist.all_gather_single(scalars, values(device=device))
    stacked = empty(SIZE, 2, 3, device=device)
    dist.all_gather_single(stacked, values(2, 3, device=device))
    return [flat, scalars, stacked]


@case
def all_gather_in_place(device):
    output = empty(SIZE * 5, device=device)
    mine = output[RANK * 5 : RANK * 5 + 5]
    mine.copy_(values(5, device=device))
    dist.all_gather_single(output, mine)
    return [output]


@case
def gather(device):
    outputs = empties(device, 3) if RANK == LAST else None
    dist.gather(values(3, device=device), outputs, dst=LAST)
    return outputs or []


@case
def scatter(device):
    output = empty(3, device=device)
    inputs = [values(3, device=device) + i for i in range(SIZE)] if RANK == 0 else None
    dist.scatter(output, inputs, src=0)
    return [output]


@case
def reduce_scatter(device):
    output = empty(3, device=device)
    dist.reduce_scatter(output, [values(3, device=device) + i for i in range(SIZE)])
    return [output]


@case
def reduce_scatter_single(device):
    output = empty(2, 3, device=device)
    dist.reduce_scatter_single(output, values(2 * SIZE, 3, device=device))
    return [output]


@case
def all_to_all(device):
    outputs = empties(device, 2)
    dist.all_to_all(outputs, [values(2, device=device) + 10 * i for i in range(SIZE)])
    return outputs


@case
def all_to_all_single(device):
    output = empty(SIZE, 2, device=device)
    dist.all_to_all_single(output, values(SIZE, 2, device=device))
    # Rank r sends r + 1 rows to everybody.
    rows = [source + 1 for source in range(SIZE)]
    ragged = empty(sum(rows), 2, device=device)
    mine = values((RANK + 1) * SIZE, 2, device=device)
    dist.all_to_all_single(ragged, mine, rows, [RANK + 1] * SIZE)
    return [output, ragged]


@case
def coalesced(device):
    group = dist.group.WORLD
    first, second = values(3, device=device), values(2, 2, device=device)
    dist.all_reduce_coalesced([first, second])
    gathered = [empties(device, 3), empties(device, 2, 2)]
    lists = [[gathered[0][i], gathered[1][i]] for i in range(SIZE)]
    dist.all_gather_coalesced(lists, [first, second])
    into = functional.all_gather_into_tensor_coalesced([first, second], group)
    parts = functional.reduce_scatter_tensor_coalesced(
        [values(SIZE, 2, device=device)], "sum", [0], group
    )
    return [first, second, *lists[0], *lists[1], *map(functional.wait_tensor, [*into, *parts])]


@case
def functional_collectives(device):
    group = dist.group.WORLD
    results = [
        functional.all_reduce(values(3, device=device), "sum", group),
        functional.all_gather_tensor(values(3, device=device), 0, group),
        functional.reduce_scatter_tensor(values(SIZE, 3, device=device), "sum", 0, group),
        functional.broadcast(values(3, device=device), 0, group),
        functional.all_to_all_single(values(SIZE, 3, device=device), None, None, group),
    ]
    return [functional.wait_tensor(result) for result in results]


@case
def send_and_receive(device):
    tensor = values(4, device=device)
    received = empty(4, device=device)
    following, preceding = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    if RANK % 2 == 0:
        dist.send(tensor, following)
        dist.recv(received, preceding)
    else:
        dist.recv(received, preceding)
        dist.send(tensor, following)
    works = [dist.isend(tensor, following, tag=3), dist.irecv(empty(4, device=device), tag=3)]
    if SIZE > 1:
        for work in works:
            work.wait()
    return [received]


@case
def receive_from_anyone(device):
    if RANK:
        dist.send(torch.tensor([RANK, 10 * RANK]).to(device), 0, tag=5)
        return []
    received = []
    for _ in range(1, SIZE):
        tensor = torch.zeros(2, dtype=torch.int64).to(device)
        sender = dist.recv(tensor, src=None, tag=5)
        assert tensor[0].item() == sender
        received.append(tensor)
    return sorted(received, key=lambda tensor: tensor[0].item())


@case
def batch_of_sends_and_receives(device):
    tensor, received = values(4, device=device), empty(4, device=device)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, tensor, (RANK + 1) % SIZE),
            dist.P2POp(dist.irecv, received, (RANK - 1) % SIZE),
        ]
    )
    for work in works:
        work.wait()
    return [received]


@case
def objects(device):
    everybody = [None] * SIZE
    dist.all_gather_object(everybody, {"rank": RANK, "tensor": values(2, device=device)})
    assert [entry["rank"] for entry in everybody] == list(range(SIZE))
    sent = [("from", LAST, torch.arange(3))] if RANK == LAST else [None]
    dist.broadcast_object_list(sent, src=LAST, device=torch.device(device))
    assert sent[0][:2] == ("from", LAST)
    mine = [None]
    dist.scatter_object_list(mine, list("abcdefgh")[:SIZE] if RANK == 0 else None, src=0)
    assert mine == ["abcdefgh"[RANK]]
    collected = [None] * SIZE if RANK == 0 else None
    dist.gather_object(RANK * 2, collected, dst=0)
    assert RANK or collected == [2 * rank for rank in range(SIZE)]
    return [entry["tensor"] for entry in everybody] + [sent[0][2].to(device)]


@case
def barriers(device):
    dist.barrier(device_ids=[0] if device == "npu" else None)
    dist.barrier(async_op=True, device_ids=[0]).wait()
    dist.monitored_barrier() if dist.get_backend() == "gloo" else None
    return []


@case
def a_group_of_some_ranks(device):
    group = dist.new_group([0, LAST])
    tensor = values(3, device=device)
    if RANK in (0, LAST):
        dist.all_reduce(tensor, group=group)
        dist.barrier(group=group, device_ids=[0])
    return [tensor]


def compare(function: Case) -> None:
    expected = function("cpu")
    results = function("npu")
    assert len(results) == len(expected)
    for result, reference in zip(results, expected, strict=True):
        assert result.device.type == "npu", result.device
        assert torch.equal(result.cpu(), reference), f"{result} is not {reference}"


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    directory = Path(os.environ["DIRECTORY"])
    dist.init_process_group(
        os.environ.get("BACKEND") or None,
        init_method=f"file://{directory}/rendezvous",
        rank=RANK,
        world_size=SIZE,
    )
    outcome = {}
    for name, function in CASES.items():
        try:
            compare(function)
            outcome[name] = "passed"
        except Exception:  # noqa: BLE001  # the test that asks for this case shows it
            outcome[name] = traceback.format_exc()
        dist.barrier(device_ids=[0])
    (directory / f"rank{RANK}.json").write_text(json.dumps(outcome))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
