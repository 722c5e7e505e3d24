"""From an engine's tokens to what clients are told: text, its end, and calls of tools."""
