"""Running a model's steps: programs, their inputs, and their caches."""
