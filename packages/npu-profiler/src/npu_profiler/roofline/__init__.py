"""Layers of a trace against what the device can do: arithmetic per precision, and its memory."""
