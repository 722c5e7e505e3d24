"""Layers of a trace against what the device can do: arithmetic per precision, and its memory.

Holds no code: peaks are measured in `peaks.py` with the models of `probe_models.py`, operations and
bytes of a layer are counted in `layer_cost.py`, and both are put together in `layers.py`, printed by
`table.py`.
"""
