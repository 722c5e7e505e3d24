"""The model that transformers' `generate` drives."""
