"""The ways in: torch.compile's backend, modules compiled in place, measured and recalled graphs."""
