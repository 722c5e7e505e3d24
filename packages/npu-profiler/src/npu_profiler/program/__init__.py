"""The program that is profiled: told to end as it would be."""
