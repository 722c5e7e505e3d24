"""GGUF files: their container, and the models that they hold."""
