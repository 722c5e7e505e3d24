"""npu tensors between processes, as torch's device-generic suites ask; forks: test_processes.

Workers run functions of torch and of the standard library, which a new process finds.
"""

import operator
import pickle
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing as mp
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, parametrize


def sent(value):
    """The value in a receiving process, without the process."""
    return pickle.loads(ForkingPickler.dumps(value))


class TestMultiprocessing(TestCase):
    def test_a_worker_gets_tensors_and_sends_them_back(self, device):
        x = torch.arange(6.0, device=device).reshape(2, 3)
        module = torch.nn.Linear(3, 2).to(device).requires_grad_(False)
        with mp.get_context("spawn").Pool(1) as pool:
            twice = pool.apply(operator.mul, (x.t(), 2))
            self.assertEqual(twice, x.t() * 2)
            self.assertEqual(twice.device, torch.device(device))
            self.assertEqual(pool.apply(module, (x,)), module(x))
            self.assertEqual(pool.apply(torch.Tensor.cpu, (x,)).device.type, "cpu")
            listed = pool.map(torch.sum, [x, x[1:], x[:0]])
            self.assertEqual([value.item() for value in listed], [15, 12, 0])
            with self.assertRaisesRegex(RuntimeError, "size of tensor"):  # the worker's error
                pool.apply(torch.add, (x, torch.ones(4, device=device)))

    @dtypes(torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.complex64)
    def test_every_dtype_arrives(self, device, dtype):
        x = torch.arange(9, device=device).to(dtype)
        self.assertEqual(sent(x), x, rtol=0, atol=0)

    @parametrize("shape", [(), (0,), (3, 4), (2, 0, 3)])
    def test_every_shape_arrives(self, device, shape):
        x = torch.ones(shape, device=device)
        twin = sent(x)
        self.assertEqual((twin.shape, twin.stride(), twin.device), (x.shape, x.stride(), x.device))

    def test_views_arrive_with_their_geometry_and_share_memory(self, device):
        base = torch.arange(24.0, device=device).reshape(4, 6)
        twin, view = sent([base, base.t()[1:, ::2]])
        self.assertEqual(view, base.t()[1:, ::2])
        self.assertEqual(view.stride(), base.t()[1:, ::2].stride())
        view.zero_()
        self.assertEqual(twin[0, 1].item(), 0)
        self.assertEqual(base[0, 1].item(), 1)  # the sender's are separate

    def test_parameters_stay_parameters(self, device):
        for requires_grad in (True, False):
            twin = sent(torch.nn.Parameter(torch.ones(2, device=device), requires_grad))
            self.assertIsInstance(twin, torch.nn.Parameter)
            self.assertEqual(twin.requires_grad, requires_grad)

    def test_what_autograd_computed_is_refused(self, device):
        computed = torch.ones(2, device=device, requires_grad=True) * 2
        with self.assertRaisesRegex(ValueError, r"detach.*\[send-non-leaf\]"):
            sent(computed)
        self.assertEqual(sent(computed.detach()).tolist(), [2, 2])

    def test_sharing_memory_says_nothing_and_changes_nothing(self, device):
        x = torch.ones(3, device=device)
        self.assertIs(x.share_memory_(), x)
        self.assertTrue(x.is_shared())


instantiate_device_type_tests(TestMultiprocessing, globals(), only_for="npu")
