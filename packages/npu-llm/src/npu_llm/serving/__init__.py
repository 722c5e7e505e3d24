"""A server for models: requests of several clients share steps of the engine."""
