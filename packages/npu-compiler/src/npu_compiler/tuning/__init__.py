"""Tuning: measures ways to compile a graph on this device and records the fastest."""
