"""LoRA adapters: their files, their inputs in a step, and merging."""
