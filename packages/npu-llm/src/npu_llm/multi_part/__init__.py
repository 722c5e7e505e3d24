"""Multi-part models: each part is traced, saved, loaded and checked as a program."""
