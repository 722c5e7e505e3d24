"""The program that is profiled: found and run as `python` would, and told to end as it would be."""
