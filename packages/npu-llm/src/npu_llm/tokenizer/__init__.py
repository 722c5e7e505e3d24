"""From text and messages to tokens, and from tokens to text."""
