"""Commands that write a model to a folder."""
