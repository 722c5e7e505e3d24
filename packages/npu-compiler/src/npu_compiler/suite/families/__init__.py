"""The architectures of the suite, one module per family."""
