"""The engine: continuous batching, prefix caching and sampling for language models."""
