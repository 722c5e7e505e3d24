"""Answers of a given form: which tokens a JSON schema, a pattern or a grammar allows next."""
