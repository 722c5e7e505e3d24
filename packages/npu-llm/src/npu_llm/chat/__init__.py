"""Conversations: multi-turn sessions, parsing of model output, and tool calls."""
