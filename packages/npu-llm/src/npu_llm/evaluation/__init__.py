"""How well a model does: perplexity of language models, and each other task's own measure."""

from npu_llm.evaluation.perplexity import EvaluationResult, default_text, evaluate, read_text
from npu_llm.evaluation.tasks import (
    FORMS,
    Form,
    TaskResult,
    check_sample,
    evaluate_task,
    form_of,
    labels_of,
)

__all__ = [
    "FORMS",
    "EvaluationResult",
    "Form",
    "TaskResult",
    "check_sample",
    "default_text",
    "evaluate",
    "evaluate_task",
    "form_of",
    "labels_of",
    "read_text",
]
