"""Folders that hold a model ready to start: built, verified, exported, and read again."""
