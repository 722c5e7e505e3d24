"""The HTTP interface: what clients of OpenAI's speak, and what an operator asks."""
