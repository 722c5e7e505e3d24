"""DataLoader with npu tensors, as torch's device-generic suites ask; forks are in test_processes.

Data sets are torch's, since a spawned worker has to find their classes.
"""

import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, parametrize
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset


class TestDataLoader(TestCase):
    def test_batches_of_npu_tensors_are_on_the_device(self, device):
        data = TensorDataset(torch.arange(10, device=device), torch.randn(10, 3, device=device))
        batches = list(DataLoader(data, batch_size=4))
        self.assertEqual([len(index) for index, _ in batches], [4, 4, 2])
        self.assertTrue(all(value.device == torch.device(device) for _, value in batches))
        self.assertEqual(torch.cat([index for index, _ in batches]).tolist(), list(range(10)))

    def test_a_sampler_gives_whole_batches(self, device):
        data = torch.arange(12.0, device=device).reshape(6, 2)
        sampler = BatchSampler(SequentialSampler(data), batch_size=3, drop_last=True)
        loader = DataLoader(data, sampler=sampler, batch_size=None)
        self.assertEqual([batch.tolist() for batch in loader], data.view(2, 3, 2).tolist())

    def test_shuffling_repeats_with_its_seed(self, device):
        data = torch.arange(20, device=device)

        def order():
            generator = torch.Generator().manual_seed(3)
            loader = DataLoader(data, shuffle=True, generator=generator, batch_size=20)
            return next(iter(loader)).tolist()

        self.assertEqual(order(), order())
        self.assertNotEqual(order(), list(range(20)))

    def test_a_default_device_makes_the_data_there(self, device):
        with torch.device(device):
            loader = DataLoader(
                TensorDataset(torch.arange(6)),
                shuffle=True,
                batch_size=6,
                generator=torch.Generator(device),
            )
            (batch,) = next(iter(loader))
        self.assertEqual(batch.device, torch.device(device))
        self.assertEqual(sorted(batch.tolist()), list(range(6)))

    @parametrize("nested", [True, False])
    def test_pinned_batches_go_to_the_device(self, device, nested):
        data = [
            {"x": torch.full((3,), float(i)), "y": [i, "text"]} if nested else torch.tensor(i)
            for i in range(4)
        ]
        for batch in DataLoader(data, batch_size=2, pin_memory=True):
            x = batch["x"] if nested else batch
            self.assertTrue(x.is_pinned())
            self.assertEqual(x.to(device, non_blocking=True).cpu(), x)

    def test_spawned_workers_send_npu_tensors(self, device):
        data = TensorDataset(torch.arange(8, device=device), torch.ones(8, 2, device=device))
        loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="spawn")
        seen = []
        for index, value in loader:
            self.assertEqual(index.device, torch.device(device))
            seen += (index + value[:, 0].long()).tolist()
        self.assertEqual(seen, list(range(1, 9)))


instantiate_device_type_tests(TestDataLoader, globals(), only_for="npu")
