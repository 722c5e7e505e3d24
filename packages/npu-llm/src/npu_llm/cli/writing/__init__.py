"""Commands that write models: export, quantize, merge."""
