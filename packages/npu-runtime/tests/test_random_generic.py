"""Random numbers, as in torch's device-generic suites; torch.npu's are in test_random."""

import pickle

import torch
import torch.utils.checkpoint
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase


class TestRandom(TestCase):
    def test_generator_is_on_the_device(self, device):
        generator = torch.Generator(device)
        self.assertEqual(generator.device, torch.device(device))

    def test_default_generators_are_the_ones_that_draw(self, device):
        module = torch.npu
        self.assertEqual(len(module.default_generators), module.device_count())
        generator = module.default_generators[torch.device(device).index]
        generator.manual_seed(4)
        first = torch.rand(3, device=device)
        generator.manual_seed(4)
        self.assertEqual(torch.rand(3, device=device), first)
        self.assertEqual(module.initial_seed(), 4)

    def test_state_of_a_generator_round_trips(self, device):
        generator = torch.Generator(device).manual_seed(1)
        torch.rand(100, device=device, generator=generator)
        state = generator.get_state()
        first = torch.rand(10, device=device, generator=generator)
        other = torch.Generator(device)
        other.set_state(state)
        self.assertEqual(torch.rand(10, device=device, generator=other), first)

    def test_a_state_survives_pickling(self, device):
        state = pickle.loads(pickle.dumps(torch.npu.get_rng_state(device)))
        first = torch.randn(5, device=device)
        torch.npu.set_rng_state(state, device)
        self.assertEqual(torch.randn(5, device=device), first)

    def test_a_state_of_the_wrong_size_is_refused(self, device):
        with self.assertRaisesRegex(RuntimeError, "RNG state"):
            torch.npu.set_rng_state(torch.zeros(3, dtype=torch.uint8), device)

    def test_a_cloned_generator_draws_the_same(self, device):
        generator = torch.Generator(device).manual_seed(3)
        torch.rand(7, device=device, generator=generator)
        twin = generator.clone_state()
        self.assertEqual(
            torch.rand(7, device=device, generator=generator),
            torch.rand(7, device=device, generator=twin),
        )

    def test_seeds_of_either_sign_are_the_cpus(self, device):
        for seed in (-1, 0, 2**63, 2**64 - 1):
            torch.manual_seed(seed)
            expected = torch.rand(2)
            torch.manual_seed(seed)
            self.assertEqual(torch.rand(2, device=device).cpu(), expected)

    def test_a_number_that_is_no_seed_is_refused(self, device):
        with self.assertRaisesRegex(ValueError, "64-bit integer"):
            torch.npu.manual_seed_all(2**70)

    @dtypes(torch.float32, torch.float64, torch.float16, torch.bfloat16)
    def test_numbers_are_the_cpus_for_every_dtype(self, device, dtype):
        for draw in (torch.rand, torch.randn):
            torch.manual_seed(8)
            expected = draw(65, dtype=dtype)
            torch.manual_seed(8)
            self.assertEqual(draw(65, dtype=dtype, device=device).cpu(), expected, rtol=0, atol=0)

    def test_in_place_draws_take_a_generator(self, device):
        generator = torch.Generator(device)
        for name, arguments in (
            ("uniform_", ()),
            ("normal_", ()),
            ("bernoulli_", (0.4,)),
            ("random_", (10,)),
            ("exponential_", ()),
            ("log_normal_", ()),
            ("geometric_", (0.3,)),
            ("cauchy_", ()),
        ):
            values = torch.empty(50, device=device)
            generator.manual_seed(2)
            getattr(values, name)(*arguments, generator=generator)
            expected = torch.empty(50)
            host = torch.Generator().manual_seed(2)
            getattr(expected, name)(*arguments, generator=host)
            self.assertEqual(values.cpu(), expected, msg=name)

    def test_fork_rng_covers_the_device(self, device):
        torch.manual_seed(1)
        expected = torch.rand(4, device=device)
        torch.manual_seed(1)
        with torch.random.fork_rng(devices=range(torch.npu.device_count()), device_type="npu"):
            torch.rand(1000, device=device)
            torch.rand(1000)
        self.assertEqual(torch.rand(4, device=device), expected)

    def test_checkpointing_repeats_the_dropout(self, device):
        x = torch.ones(200, device=device, requires_grad=True)
        torch.utils.checkpoint.checkpoint(
            lambda value: torch.nn.functional.dropout(value, 0.5), x, use_reentrant=False
        ).sum().backward()
        self.assertEqual(set(x.grad.unique().tolist()), {0.0, 2.0})
        state = torch.npu.get_rng_state(device)
        y = torch.ones(200, device=device, requires_grad=True)
        out = torch.utils.checkpoint.checkpoint(
            lambda value: torch.nn.functional.dropout(value, 0.5), y, use_reentrant=True
        )
        out.sum().backward()
        self.assertEqual(y.grad, out.detach())
        self.assertFalse(torch.equal(torch.npu.get_rng_state(device), state))

    def test_a_module_on_the_device_drops_differently_each_time(self, device):
        dropout = torch.nn.Dropout(0.5)
        x = torch.ones(400, device=device)
        self.assertFalse(torch.equal(dropout(x), dropout(x)))

    def test_shuffling_loader_takes_a_generator_of_the_cpu(self, device):
        data = torch.arange(10, device=device)
        loader = torch.utils.data.DataLoader(
            data, shuffle=True, generator=torch.Generator().manual_seed(0)
        )
        self.assertEqual(sorted(int(item) for item in loader), list(range(10)))


instantiate_device_type_tests(TestRandom, globals(), only_for="npu")
