"""Models of several parts: each part traced, saved, loaded and checked as a program."""
