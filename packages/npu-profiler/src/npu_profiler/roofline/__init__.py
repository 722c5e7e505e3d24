"""Roofline: layers of a trace against the device's peaks of arithmetic and memory bandwidth."""
