"""Rules from the NPU compiler's source, with checks and rewrites of models by them."""
