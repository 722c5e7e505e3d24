"""Builds models, stores them in the compile cache or exports them, and loads them."""
