"""Conversations: from messages to tokens, and from tokens to the text that a screen shows."""
