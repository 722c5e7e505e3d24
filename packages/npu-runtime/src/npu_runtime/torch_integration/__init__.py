"""Parts of torch that learn of npu: torch.distributed, DLPack, multiprocessing."""
