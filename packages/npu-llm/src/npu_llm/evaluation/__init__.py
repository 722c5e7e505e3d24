"""Model quality: perplexity of language models, and a metric for each other task."""

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
