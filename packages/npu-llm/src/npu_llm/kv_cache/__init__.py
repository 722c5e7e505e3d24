"""KV caches: paged, inside a program, and of fixed sizes; one class per pipeline."""
