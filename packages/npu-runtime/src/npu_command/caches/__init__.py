"""The caches of the platform: where they are, and what they keep."""
