import gc
import threading

import pytest
import torch

from npu_ops import fallback


def npu(*values, **options):
    return torch.tensor(values, device="npu", **options)


def test_fresh_result_is_an_npu_tensor_in_npu_memory():
    result = torch.add(npu(1.0, 2.0), 1)
    assert result.device == torch.device("npu:0")
    assert result.untyped_storage().device == torch.device("npu:0")
    assert result.tolist() == [2.0, 3.0]
    result.resize_(5000).fill_(1)  # grows with npu's allocator, not the CPU's
    assert result.untyped_storage().device.type == "npu"


def test_input_memory_is_used_in_place():
    x = npu(1.0, 2.0)
    before = x.data_ptr()
    x.add_(1)
    assert x.data_ptr() == before
    assert x.tolist() == [2.0, 3.0]


def test_in_place_op_returns_the_tensor_itself():
    x = npu(1.0)
    assert x.mul_(2) is x
    assert torch.ops.aten.relu_(x) is x


def test_out_variant_returns_out():
    out = torch.empty(2, device="npu")
    assert torch.mul(npu(1.0, 2.0), 3, out=out) is out
    assert out.tolist() == [3.0, 6.0]


def test_strided_out_is_written_where_it_lies():
    base = torch.zeros(4, 4, device="npu")
    torch.add(torch.ones(4, device="npu"), 1, out=base[:, 1])
    assert base.sum(0).tolist() == [0.0, 8.0, 0.0, 0.0]


def test_in_place_result_that_does_not_fit_is_refused():
    x = torch.ones(3, 1, device="npu")
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.logical_and_(torch.ones(3, 3, device="npu"))
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        torch.add(x, torch.ones(3, 3, device="npu"), out=x)
    assert x.shape == (3, 1)


def test_copy_on_write_input_that_is_the_output_too():
    x = torch.arange(3.0, device="npu")
    lazy = torch._lazy_clone(x)
    torch.add(lazy, 1, out=lazy)
    assert lazy.tolist() == [1.0, 2.0, 3.0]
    assert x.tolist() == [0.0, 1.0, 2.0]


def test_op_that_lists_its_devices_by_name():
    values, indices = torch.empty(0, device="npu"), torch.empty(0, dtype=torch.int64, device="npu")
    torch.mode(npu(1.0, 2.0, 2.0), out=(values, indices))
    assert (values.item(), indices.item()) == (2.0, 2)


def test_input_and_output_may_be_the_same_tensor():
    x = npu(1.0, 2.0)
    torch.add(x, x, out=x)
    assert x.tolist() == [2.0, 4.0]


def test_several_results_and_outputs():
    x = npu(3.0, 1.0, 2.0)
    values, indices = torch.sort(x)
    assert (values.tolist(), indices.tolist()) == ([1.0, 2.0, 3.0], [1, 2, 0])
    out = (torch.empty(0, device="npu"), torch.empty(0, dtype=torch.int64, device="npu"))
    torch.sort(x, out=out)
    assert torch.equal(out[0], values)
    assert {part.device.type for part in (values, indices, *out)} == {"npu"}


def test_kernel_that_returns_its_input_gives_back_the_original():
    x = torch.randn(3, device="npu")
    assert x.contiguous() is x
    assert torch.ops.aten._reshape_alias(x, (3,), (1,)).data_ptr() == x.data_ptr()


def test_view_made_by_a_cpu_kernel_shares_npu_memory():
    library = torch.library.Library("npu_test_view", "DEF")
    library.define("tail(Tensor(a) x) -> Tensor(a)")
    library.impl("tail", lambda x: x[1:], "CPU")
    x = npu(1.0, 2.0, 3.0)
    tail = torch.ops.npu_test_view.tail(x)
    assert tail.device.type == "npu"
    assert tail.data_ptr() == x.data_ptr() + 4
    tail.zero_()
    assert x.tolist() == [1.0, 0.0, 0.0]


def test_lists_of_tensors_go_in_and_come_out():
    parts = [npu(1.0), npu(2.0, 3.0)]
    assert torch.cat(parts).tolist() == [1.0, 2.0, 3.0]
    doubled = torch._foreach_mul(parts, 2)
    assert [part.tolist() for part in doubled] == [[2.0], [4.0, 6.0]]
    assert {part.device.type for part in doubled} == {"npu"}
    torch._foreach_add_(parts, 1)
    assert [part.tolist() for part in parts] == [[2.0], [3.0, 4.0]]


def test_optional_lists_hold_places_for_nothing():
    x = torch.arange(6.0).view(2, 3).to("npu")
    assert x[:, npu(0, 2)].tolist() == [[0.0, 2.0], [3.0, 5.0]]
    x[npu(0), :] = -1
    assert x[0].tolist() == [-1.0] * 3
    x.index_put_((npu(0, 0), npu(1, 1)), npu(5.0, 6.0), accumulate=True)
    assert x[0, 1].item() == 10


def test_boolean_mask_reads_and_writes():
    x = npu(1.0, -2.0, 3.0)
    assert x[x > 0].tolist() == [1.0, 3.0]
    x[x < 0] = 0
    assert x.tolist() == [1.0, 0.0, 3.0]
    assert x.nonzero().tolist() == [[0], [2]]


def test_device_arguments_are_honoured():
    x = npu(1.0)
    assert x.new_zeros(2).device.type == "npu"
    assert x.to("cpu").device.type == "cpu"
    assert torch.zeros_like(x, device="cpu").device.type == "cpu"
    assert torch.ops.aten.randperm(4, device="npu").device.type == "npu"


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), ()], ids=str)
def test_empty_and_zero_dim_tensors(shape):
    host = torch.ones(shape)
    there = host.to("npu")
    assert torch.equal((there + there).cpu(), host + host)
    assert torch.equal(there.sum().cpu(), host.sum())
    assert torch.equal(
        torch.cat([there.reshape(-1), there.reshape(-1)]).cpu(), torch.cat([host.reshape(-1)] * 2)
    )


def test_non_contiguous_conjugate_and_negative_inputs():
    host = torch.randn(4, 6, dtype=torch.complex64)
    there = host.to("npu")
    for change in (
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x.conj(),
        lambda x: x.conj().imag,
    ):
        assert torch.equal((change(there) * 2).resolve_conj().resolve_neg().cpu(), change(host) * 2)
    torch.testing.assert_close((there.conj() @ there.t()).cpu(), host.conj() @ host.t())


def test_copy_on_write_readers_share_and_writers_get_their_own():
    x = torch.arange(4.0, device="npu")
    lazy = torch._lazy_clone(x)
    assert (lazy + 1).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert torch._C._is_cow_tensor(lazy)
    lazy.add_(10)
    assert not torch._C._is_cow_tensor(lazy)
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    x.mul_(2)
    assert lazy.tolist() == [10.0, 11.0, 12.0, 13.0]


def test_a_kernel_that_fails_after_resizing_leaves_a_sound_tensor():
    library = torch.library.Library("npu_test_fail", "DEF")
    library.define("grow_and_fail(Tensor(a!) x) -> ()")

    def grow_and_fail(x):
        x.resize_(4000)
        raise ValueError("on purpose")

    library.impl("grow_and_fail", grow_and_fail, "CPU")
    x = npu(1.0, 2.0)
    (x + 1).sum()
    with pytest.raises(ValueError, match="on purpose"):
        torch.ops.npu_test_fail.grow_and_fail(x)
    assert x.device.type == "npu"
    assert x[:2].tolist() == [1.0, 2.0]
    assert x.fill_(1).sum().item() == x.numel()


def test_errors_of_the_cpu_kernel_come_through_with_their_class():
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.ones(2, device="npu").sum(3)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.ones(2, 3, device="npu") @ torch.ones(2, 3, device="npu")


def test_op_without_a_cpu_kernel_says_so():
    library = torch.library.Library("npu_test_none", "DEF")
    library.define("nothing(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match="npu_test_none::nothing"):
        torch.ops.npu_test_none.nothing(npu(1.0))


def test_an_op_that_was_taken_back_may_be_defined_again_with_other_arguments():
    def defined(schema, kernel):
        library = torch.library.Library("npu_test_again", "DEF")
        library.define(schema)
        library.impl("op", kernel, "CPU")
        return library

    def add_one(x):
        x.add_(1)

    x = npu(1.0, 2.0)
    fallback.reset_fallback_report()
    for _ in range(40):
        library = defined("op(Tensor(a!) x) -> ()", add_one)
        torch.ops.npu_test_again.op(x)
        library._destroy()
        # An object defined in between may be at the first one's address.
        other = torch.library.Library("npu_test_other", "DEF")
        other.define("op(int a) -> int")
        library = defined("op(int a, Tensor x, Tensor y) -> Tensor", lambda a, x, y: a * x + y)
        result = torch.ops.npu_test_again.op(3, x, x)
        assert result.tolist() == (4 * x).tolist()
        library._destroy()
        other._destroy()
    assert x.tolist() == [41.0, 42.0]
    assert fallback.fallback_report()["npu_test_again::op"] == 80


def test_a_python_kernel_may_keep_what_it_was_given():
    kept = []

    @torch.library.custom_op("npu_test_keep::plus_one", mutates_args=(), device_types="cpu")
    def plus_one(x: torch.Tensor) -> torch.Tensor:
        result = x + 1
        kept.extend([x, x[1:], result])
        return result

    x = npu(1.0, 2.0, 3.0)
    result = plus_one(x)
    assert result.device.type == "npu"
    assert [tensor.device.type for tensor in kept] == ["cpu"] * 3
    x.add_(3)
    assert kept[0].tolist() == [4.0, 5.0, 6.0]  # the same bytes, as long as they live
    del x
    gc.collect()
    reused = [torch.full((3,), -1.0, device="npu") for _ in range(8)]
    assert kept[0].tolist() == [4.0, 5.0, 6.0]
    assert kept[1].tolist() == [5.0, 6.0]
    assert sum(tensor.sum().item() for tensor in reused) == -24


def test_a_python_kernel_may_return_a_part_of_what_it_keeps():
    library = torch.library.Library("npu_test_cache", "DEF")
    library.define("cached(Tensor x) -> Tensor")
    library.define("halves(Tensor x) -> (Tensor, Tensor)")
    cache = []

    def cached(x):
        if not cache:
            cache.append(torch.zeros(4))
        return cache[0][1:]

    library.impl("cached", cached, "CPU")
    library.impl("halves", lambda x: tuple((x + 1).chunk(2)), "CPU")
    x = npu(1.0, 2.0)
    results = [torch.ops.npu_test_cache.cached(x) for _ in range(2)]
    results[0].add_(1)
    assert cache[0].device.type == "cpu"
    assert cache[0].tolist() == [0.0] * 4
    assert results[1].tolist() == [0.0] * 3
    first, second = torch.ops.npu_test_cache.halves(x)
    assert {first.device.type, second.device.type} == {"npu"}
    assert (first.tolist(), second.tolist()) == ([2.0], [3.0])


def test_memory_from_elsewhere_is_used_in_place():
    x = torch.arange(4.0, device="npu")
    foreign = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x[1:]))
    assert foreign.device.type == "npu"
    assert (foreign + 1).tolist() == [2.0, 3.0, 4.0]
    foreign.mul_(10)
    assert x.tolist() == [0.0, 10.0, 20.0, 30.0]


def test_many_threads_use_one_tensor():
    x = torch.eye(32, device="npu")
    wrong = []

    def work():
        sums = [(x @ x)[1:].t().sum().item() for _ in range(200)]
        wrong.extend(value for value in sums if value != 31)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_memory_returns_to_the_pool():
    x = torch.ones(1000, device="npu")
    gc.collect()
    before = torch.npu.memory_allocated()
    for _ in range(50):
        ((x + 1).view(10, 100) @ torch.ones(100, 10, device="npu")).relu().sum()
    gc.collect()
    assert torch.npu.memory_allocated() == before
