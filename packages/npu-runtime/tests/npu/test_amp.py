"""Autocast and the gradient scaler by their names on torch.npu; the ops' lists are npu-ops'."""

import pytest
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, parametrize

from npu_runtime import InputError


def step(scaler, optimizer, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


class TestGradScaler(TestCase):
    @parametrize("make", ["torch.amp", "torch.npu.amp"])
    def test_a_good_step_is_the_unscaled_step(self, device, make):
        scaler = (
            torch.amp.GradScaler("npu", init_scale=128)
            if make == "torch.amp"
            else torch.npu.amp.GradScaler(init_scale=128)
        )
        weight = torch.nn.Parameter(torch.ones(3, device=device))
        step(scaler, torch.optim.SGD([weight], lr=0.5), (weight * 2).sum())
        self.assertEqual(weight.tolist(), [0, 0, 0])
        self.assertEqual(scaler.get_scale(), 128)

    @parametrize("bad", [float("inf"), float("nan")])
    @parametrize("foreach", [True, False])
    def test_a_bad_gradient_skips_the_step_and_halves_the_scale(self, device, bad, foreach):
        scaler = torch.npu.amp.GradScaler(init_scale=64)
        weight = torch.nn.Parameter(torch.ones(3, device=device))
        other = torch.nn.Parameter(torch.ones(2, device=device))
        optimizer = torch.optim.SGD([weight, other], lr=0.5, foreach=foreach)
        step(scaler, optimizer, (weight * bad).sum() + other.sum())
        self.assertEqual(weight.tolist(), [1, 1, 1])
        self.assertEqual(other.tolist(), [1, 1])
        self.assertEqual(scaler.get_scale(), 32)

    def test_the_scale_grows_after_the_interval(self, device):
        scaler = torch.npu.amp.GradScaler(init_scale=8, growth_interval=2, growth_factor=4)
        weight = torch.nn.Parameter(torch.ones(1, device=device))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scales = []
        for _ in range(4):
            step(scaler, optimizer, weight.sum())
            scales.append(scaler.get_scale())
        self.assertEqual(scales, [8, 32, 32, 128])

    @parametrize(
        "growth,backoff", [(1.0, 0.5), (0.9, 0.5), (2.0, 1.0), (2.0, 1.1), (float("nan"), 0.5)]
    )
    def test_a_factor_that_does_not_grow_or_shrink_is_refused(self, growth, backoff):
        with pytest.raises(InputError, match=f"got {growth} and {backoff}") as caught:
            torch.npu.amp.GradScaler(growth_factor=growth, backoff_factor=backoff)
        self.assertEqual(caught.value.code, "scale-factor")

    def test_a_disabled_scaler_takes_any_factor(self):
        scaler = torch.npu.amp.GradScaler(growth_factor=1.0, backoff_factor=1.0, enabled=False)
        self.assertEqual(scaler.get_scale(), 1.0)

    def test_unscaling_lets_gradients_be_clipped(self, device):
        scaler = torch.npu.amp.GradScaler(init_scale=1024)
        weight = torch.nn.Parameter(torch.ones(4, device=device))
        optimizer = torch.optim.SGD([weight], lr=1)
        scaler.scale((weight * 3).sum()).backward()
        scaler.unscale_(optimizer)
        self.assertEqual(weight.grad.tolist(), [3] * 4)
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
        scaler.step(optimizer)
        self.assertEqual(weight, torch.full((4,), 0.5, device=device))

    def test_half_gradients_are_refused(self, device):
        scaler = torch.npu.amp.GradScaler()
        weight = torch.nn.Parameter(torch.ones(2, device=device, dtype=torch.float16))
        optimizer = torch.optim.SGD([weight], lr=1)
        scaler.scale(weight.float().sum()).backward()
        with self.assertRaisesRegex(ValueError, "unscale FP16"):
            scaler.unscale_(optimizer)

    def test_fused_optimizers_take_scale_and_inf(self, device):
        plain = torch.nn.Parameter(torch.ones(3, device=device))
        fused = torch.nn.Parameter(torch.ones(3, device=device))
        for weight, options in ((plain, {}), (fused, {"fused": True})):
            scaler = torch.npu.amp.GradScaler(init_scale=16)
            step(scaler, torch.optim.AdamW([weight], **options), (weight**2).sum())
        self.assertEqual(fused, plain)

    def test_the_state_round_trips(self, device):
        scaler = torch.npu.amp.GradScaler(init_scale=64)
        weight = torch.nn.Parameter(torch.ones(1, device=device))
        step(scaler, torch.optim.SGD([weight], lr=1), weight.sum() * float("inf"))
        twin = torch.npu.amp.GradScaler()
        twin.load_state_dict(scaler.state_dict())
        self.assertEqual(twin.get_scale(), 32)

    def test_disabled_it_does_nothing(self, device):
        scaler = torch.npu.amp.GradScaler(enabled=False)
        loss = torch.ones(1, device=device)
        self.assertIs(scaler.scale(loss), loss)


class TestAutocastNames(TestCase):
    def test_the_dtype_is_float16_until_it_is_set(self, device):
        self.assertEqual(torch.npu.get_autocast_dtype(), torch.float16)
        torch.npu.set_autocast_dtype(torch.bfloat16)
        try:
            with torch.npu.amp.autocast():
                x = torch.ones(2, 2, device=device)
                self.assertEqual((x @ x).dtype, torch.bfloat16)
        finally:
            torch.npu.set_autocast_dtype(torch.float16)
        self.assertEqual(torch.get_autocast_dtype("npu"), torch.float16)

    def test_it_nests_decorates_and_ends(self, device):
        x = torch.ones(2, 2, device=device)

        @torch.npu.amp.autocast(dtype=torch.bfloat16)
        def decorated():
            return x @ x

        self.assertEqual(decorated().dtype, torch.bfloat16)
        with torch.npu.amp.autocast():
            self.assertTrue(torch.npu.is_autocast_enabled())
            with torch.npu.amp.autocast(enabled=False):
                self.assertEqual((x @ x).dtype, torch.float32)
        self.assertFalse(torch.npu.is_autocast_enabled())

    def test_a_dtype_that_cannot_be_is_said_and_switched_off(self, device):
        with self.assertWarnsRegex(UserWarning, "target dtype is not supported"):
            context = torch.autocast("npu", dtype=torch.float64)
        with context:
            x = torch.ones(2, 2, device=device)
            self.assertEqual((x @ x).dtype, torch.float32)

    def test_custom_functions_cast_their_inputs(self, device):
        class Product(torch.autograd.Function):
            @staticmethod
            @torch.npu.amp.custom_fwd(cast_inputs=torch.float32)
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                return a @ b

            @staticmethod
            @torch.npu.amp.custom_bwd
            def backward(ctx, grad):
                a, b = ctx.saved_tensors
                return grad @ b.t(), a.t() @ grad

        a = torch.ones(2, 2, device=device, dtype=torch.float16, requires_grad=True)
        with torch.npu.amp.autocast():
            out = Product.apply(a, a)
        self.assertEqual(out.dtype, torch.float32)
        out.sum().backward()
        self.assertEqual(a.grad.dtype, torch.float16)

    def test_autocast_of_the_cpu_is_another_one(self, device):
        x = torch.ones(2, 2, device=device)
        with torch.autocast("cpu"):
            self.assertEqual((x @ x).dtype, torch.float32)
            self.assertEqual((x.cpu() @ x.cpu()).dtype, torch.bfloat16)


instantiate_device_type_tests(TestGradScaler, globals(), only_for="npu")
instantiate_device_type_tests(TestAutocastNames, globals(), only_for="npu")
