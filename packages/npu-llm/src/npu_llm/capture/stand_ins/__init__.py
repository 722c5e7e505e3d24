"""What stands in, while a step is traced, for code of transformers that a program cannot follow."""
