"""Checkpoints with quantized weights: GPTQ, AWQ, compressed-tensors, float8 and so on."""
