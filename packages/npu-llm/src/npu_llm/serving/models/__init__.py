"""The models that a server has, with their tokenizers and engines."""
