"""Tests of libraries that are in the environment of `nox -s ecosystem` alone."""

from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("diffusers") is None else []
