"""Tokenizers, chat templates and detokenization."""
