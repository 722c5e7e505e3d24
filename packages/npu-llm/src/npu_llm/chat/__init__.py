"""Conversations: from messages to tokens, and from tokens to what the screen shows."""
