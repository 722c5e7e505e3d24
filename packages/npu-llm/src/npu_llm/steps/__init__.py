"""Steps of a model that run: programs, their inputs, and their caches."""
