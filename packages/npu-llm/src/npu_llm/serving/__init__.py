"""A server of models for several clients at once: steps that they share, and the HTTP in front."""
