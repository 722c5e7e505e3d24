"""What other wheels bring: drivers, kernels, code for Inductor, observers."""
