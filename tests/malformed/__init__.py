"""Malformed calls of every public Python entry point and command, drawn, made and judged.

`python -m malformed --count 5000` with this folder's parent on PYTHONPATH; the tests of it are
test_malformed_calls.py beside this folder.
"""
