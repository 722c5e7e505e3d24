"""Layers of a trace against what the device can do: arithmetic per precision, and its memory.

`peaks` measures what the device can do with the models of `probe_models`; `layer_cost` counts the
operations and bytes of a layer, `costs` those of a trace's layers, and `layers` relates the two.
"""
