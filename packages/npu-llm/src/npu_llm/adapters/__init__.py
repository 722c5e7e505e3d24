"""LoRA adapters: their files, their place in a step, and which of them a model uses."""
