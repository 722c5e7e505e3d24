"""Commands that show models and the cache: info, check, list, ps, cache."""
