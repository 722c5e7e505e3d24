"""Structured output: constrains answers to a JSON schema, a regular expression or a grammar."""

from npu_llm.structured_output.constraints import (
    ConstraintMaker,
    FormConstraint,
    FormProcessor,
    TokenConstraint,
)
from npu_llm.structured_output.forms import JSON_OPTIONS, Form, given_form, llguidance
from npu_llm.structured_output.thinking import ThinkingGate

__all__ = [
    "JSON_OPTIONS",
    "ConstraintMaker",
    "Form",
    "FormConstraint",
    "FormProcessor",
    "ThinkingGate",
    "TokenConstraint",
    "given_form",
    "llguidance",
]
