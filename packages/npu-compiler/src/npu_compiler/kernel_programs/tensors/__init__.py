"""Kernel programs of graphs whose tensors are rows with fixed sizes, for torch.compile."""
