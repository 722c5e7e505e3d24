"""Models with an encoder and a decoder: a few captured programs with caches between them."""
