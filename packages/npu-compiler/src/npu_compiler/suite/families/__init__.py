"""The architectures of the suite, a module for each family."""
