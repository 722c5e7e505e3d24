"""Entry points: torch.compile's backend, modules compiled in place, tuning, and the graph cache."""
