"""Builds models, keeps them in the compile cache or exports them, and loads them."""
