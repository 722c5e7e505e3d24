"""Ops that autocast casts, against torch's lists for CUDA, op by op."""

import pytest
import torch
from torch.testing._internal.autocast_test_lists import AutocastTestLists, TestAutocast
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import parametrize

# The lists hold functions that torch has deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using torch.cross without"),
    pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated"),
]

LOWER = (torch.float16, torch.bfloat16)
# Only on CUDA: cuDNN's ops, and ops that torch itself no longer has.
ELSEWHERE = {"cudnn_convolution", "cudnn_convolution_transpose"}
lower = parametrize("dtype", LOWER)


class TestAutocastLists(TestAutocast):
    def check(self, rows, run_as, module, dtype, **options):
        for row in rows:
            op, arguments, *rest = row  # the rest are keywords, or marks that the row is left out
            keywords = rest[0] if rest and isinstance(rest[0], dict) else {}
            if op in ELSEWHERE or (rest and rest[0] and not keywords):
                continue
            with self.subTest(op=op):
                self._run_autocast_outofplace(
                    op,
                    arguments,
                    run_as,
                    device="npu",
                    module=module,
                    add_kwargs=keywords,
                    amp_dtype=dtype,
                    **options,
                )

    @lower
    def test_products_and_convolutions_are_lowered(self, device, dtype):
        lists = AutocastTestLists(torch.device(device))
        self.check(lists.torch_fp16, dtype, torch, dtype)
        self.check(lists.linalg_fp16, dtype, torch._C._linalg, dtype)
        self.check(lists.nn_fp16, dtype, torch._C._nn, dtype)
        self.check(lists.methods_fp16, dtype, None, dtype)

    @lower
    def test_sums_exponentials_and_losses_stay_in_float32(self, device, dtype):
        lists = AutocastTestLists(torch.device(device))
        self.check(lists.torch_fp32, torch.float32, torch, dtype)
        self.check(lists.nn_fp32, torch.float32, torch._C._nn, dtype)
        self.check(lists.methods_fp32, torch.float32, None, dtype)

    def test_mixed_arguments_take_the_widest(self, device):
        lists = AutocastTestLists(torch.device(device))
        self.check(lists.torch_need_autocast_promote, torch.float32, torch, torch.float16)

    def test_the_rest_promotes_by_itself(self, device):
        lists = AutocastTestLists(torch.device(device))
        for rows, module in (
            (lists.torch_expect_builtin_promote, torch),
            (lists.methods_expect_builtin_promote, None),
        ):
            for op, arguments, expected in rows:
                with self.subTest(op=op):
                    self._run_autocast_outofplace(
                        op,
                        arguments,
                        torch.float32,
                        device="npu",
                        module=module,
                        out_type=expected,
                        amp_dtype=torch.float16,
                    )

    def test_einsum_is_lowered(self, device):
        x = torch.ones(2, 3, device=device)
        with torch.autocast("npu"):
            self.assertEqual(torch.einsum("ij,kj->ik", x, x).dtype, torch.float16)

    def test_unsafe_ops_are_refused(self, device):
        for op, arguments, module in AutocastTestLists(torch.device(device)).banned:
            with (
                self.subTest(op=op),
                torch.autocast("npu"),
                self.assertRaisesRegex(RuntimeError, "unsafe to autocast"),
            ):
                getattr(module, op)(*arguments)

    def test_ops_on_no_list_run_in_the_dtype_they_get(self, device):
        x = torch.ones(3, device=device, dtype=torch.float16)
        with torch.autocast("npu", dtype=torch.bfloat16):
            for op in (torch.relu, torch.sigmoid, torch.abs, torch.nn.functional.gelu):
                self.assertEqual(op(x).dtype, torch.float16, msg=str(op))
            self.assertEqual(torch.arange(3, device=device).add(1).dtype, torch.int64)
            self.assertEqual((x.double() @ x.double()).dtype, torch.float64)

    def test_a_weight_is_cast_once_while_it_is_on(self, device):
        weight = torch.nn.Parameter(torch.ones(4, 4, device=device))
        x = torch.ones(2, 4, device=device)

        def casts(cache_enabled):
            with (
                torch.profiler.profile() as profile,
                torch.autocast("npu", dtype=torch.bfloat16, cache_enabled=cache_enabled),
            ):
                for _ in range(3):
                    torch.nn.functional.linear(x, weight)
            return sum(
                event.count for event in profile.key_averages() if event.key == "aten::_to_copy"
            )

        # Three of x either way; the weight's is kept.
        self.assertEqual((casts(True), casts(False)), (4, 6))

    def test_backward_runs_in_the_forwards_dtypes(self, device):
        first = torch.nn.Linear(4, 4).to(device)
        second = torch.nn.Linear(4, 4).to(device)
        with torch.autocast("npu", dtype=torch.bfloat16):
            middle = first(torch.ones(2, 4, device=device))
            loss = torch.nn.functional.mse_loss(second(middle.relu()), torch.zeros_like(middle))
        middle.retain_grad()
        loss.backward()
        self.assertEqual(loss.dtype, torch.float32)
        self.assertEqual(middle.grad.dtype, torch.bfloat16)
        self.assertEqual(first.weight.grad.dtype, torch.float32)

    @parametrize("kind", ["LSTM", "GRU", "RNN"])
    def test_recurrent_layers_are_lowered(self, device, kind):
        layer = getattr(torch.nn, kind)(4, 5).to(device)
        with torch.autocast("npu", dtype=torch.bfloat16):
            out, _ = layer(torch.ones(3, 2, 4, device=device))
        self.assertEqual(out.dtype, torch.bfloat16)
        out.float().sum().backward()
        self.assertEqual(layer.weight_hh_l0.grad.dtype, torch.float32)


instantiate_device_type_tests(TestAutocastLists, globals(), only_for="npu")
