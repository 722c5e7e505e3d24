"""Sweeps over sizes and dtypes: how fast the device computes products, networks, language models.

Holds no code: what is computed is in `workloads.py`, timing in `measuring.py`, tables and pictures
of it in `report.py`, and language models in `llm.py`, through npu-llm's own benchmark.
"""
