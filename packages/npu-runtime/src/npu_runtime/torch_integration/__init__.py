"""Integration with torch.distributed, multiprocessing, FlexAttention and torch.profiler."""
