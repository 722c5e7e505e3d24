"""Names of a step's inputs that transformers' models do not have; without torch."""

__all__ = ["KEY_POSITIONS", "TOKEN_MASK"]

# The input with each slot's position.
KEY_POSITIONS = "key_positions"
# The input that tells which rows' tokens count, of a model with states.
TOKEN_MASK = "token_mask"
