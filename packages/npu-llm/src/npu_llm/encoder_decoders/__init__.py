"""Encoder-decoder models: a few traced programs with caches between them."""
