"""The HTTP interface: protocols of several clients, health and metrics."""
