"""Layers of a trace against what the device can do: arithmetic per precision, and its memory.

Holds no code: peaks are measured in `peaks.py` with the models of `probe_models.py`, operations
and bytes of a layer are counted in `layer_cost.py`, those of a trace's layers in `costs.py`;
`layers.py` puts both together, and `table.py` makes tables of it.
"""
