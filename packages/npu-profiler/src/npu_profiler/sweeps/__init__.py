"""Sweeps over sizes and dtypes: the speed of products, networks, language models."""
