"""Mutation testing: draws small faults in the sources and counts those that the tests detect."""
