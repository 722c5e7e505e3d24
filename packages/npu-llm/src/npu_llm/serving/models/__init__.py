"""A server's models with their tokenizers and engines."""
