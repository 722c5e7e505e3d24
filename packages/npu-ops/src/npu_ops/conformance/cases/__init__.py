"""Cases as data: what is called with which tensors, and what may differ."""

from .case import CHECKS, Case
from .layouts import LAYOUTS
from .templates import interface_cases

__all__ = ["CHECKS", "LAYOUTS", "Case", "interface_cases"]
