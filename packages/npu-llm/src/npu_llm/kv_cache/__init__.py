"""KV caches: paged, in a program, and of fixed sizes; one class for each pipeline."""
