"""Checkpoints whose weights others quantized: GPTQ, AWQ, compressed-tensors, float8 and so on."""
