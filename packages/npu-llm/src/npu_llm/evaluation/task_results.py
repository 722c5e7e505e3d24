"""evaluate_task: a model's answers to samples, and how good they are by the task's measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_llm.errors import OptionError
from npu_llm.evaluation.measures import MEASURES, measure
from npu_llm.evaluation.predictions import Asking, predict
from npu_llm.evaluation.task_forms import check_sample, form_of, label_index
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

__all__ = ["TaskResult", "evaluate_task", "labels_of", "task_of"]


@dataclass(frozen=True)
class TaskResult:
    """How good a model's answers are.

    Attributes:
        precision: name of the model's precision.
        task: name of transformers' class for the task.
        samples: how many were answered.
        figures: each measure's; the first is the one that counts. Error rates, accuracy
            and F1 are shares of 1, chrF and BLEU scores of 0 to 100.
        predictions: the answers: texts, indices of classes, or vectors.
    """

    precision: str
    task: str
    samples: int
    figures: Mapping[str, float]
    predictions: tuple[Any, ...] = field(repr=False)

    @public_call
    def loss(self, exact: TaskResult) -> float:
        """How many points worse than another result this is, by the measure that counts.

        A whole has 100 points: an error rate of 0.12 instead of 0.10 loses 2. The loss of vectors
        is what their mean cosine lacks of 1.
        """
        name, value = next(iter(self.figures.items()))
        kind = MEASURES[name]
        before = 1.0 if name == "cosine" else exact.figures[name]
        return (before - value if kind.is_better_higher else value - before) * kind.points


@public_call
def evaluate_task(
    model: Any,
    samples: Sequence[Mapping[str, Any]],
    *,
    processors: str | Path,
    exact: TaskResult | None = None,
    batch_size: int = 8,
    generate: Mapping[str, Any] | None = None,
    source_language: str | None = None,
    on_samples: Callable[[int, int], None] = lambda done, total: None,
) -> TaskResult:
    """Measures a model by samples of its task.

    Args:
        model: of one of this package's classes for tasks, such as NPUModelForCTC.
        samples: mappings with the fields of npu_llm.evaluation.FORMS; sound as an array
            (samples,) at the model's rate, images as PIL images.
        processors: the folder or name of the checkpoint with tokenizer and processors.
        exact: the result of another precision, to which vectors are compared; by default these
            vectors themselves.
        batch_size: how many samples are answered at once, at most.
        generate: arguments of generate, for models that write.
        source_language: what a translating model of many languages reads.
        on_samples: called between batches with how many samples are answered, and of how many.

    Raises:
        OptionError: [eval-task] for a task without a measure, [eval-data] for a sample that does
            not fit it, [missing-measure] if the library that measures it is not installed,
            [batch-size] for less than 1.
        ModelError: [missing-processor] if the model came without what prepares its inputs.
    """
    if batch_size < 1:
        raise OptionError(
            f"batch_size: must be at least 1; got {batch_size}. Omit it for the default.",
            code="batch-size",
        )
    task = task_of(model)
    form = form_of(task)
    labels = labels_of(model.config)
    if not samples:
        raise OptionError("samples: there must be at least one; got none. Pass some.",
                          code="eval-data")  # fmt: skip
    for number, sample in enumerate(samples, 1):
        check_sample(sample, form, f"sample {number}", labels=labels)
    asking = Asking(processors, batch_size, dict(generate or {}), source_language, on_samples)
    found = predict(model, task, samples, asking)
    answers = [_answer(sample, labels) for sample in samples]
    compared = found if exact is None else exact.predictions
    figures = {name: measure(name, found, answers, compared) for name in form.measures}
    return TaskResult(model.precision.name, task, len(samples), figures, tuple(found))


def task_of(model: Any) -> str:
    """Returns the name of transformers' class for a model's task."""
    auto = getattr(type(model), "_auto", None)
    if auto is None:
        raise OptionError(
            "evaluate_task: the model must be of one of npu_llm's classes for tasks; got a "
            f"{type(model).__name__}. Load it with NPUAutoModel.from_pretrained.",
            code="foreign-model",
        )
    return str(auto.__name__)


@public_call
def labels_of(config: PreTrainedConfig) -> dict[str, int]:
    """Returns a model's classes by name."""
    return {str(name): int(index) for index, name in (config.id2label or {}).items()}


def _answer(sample: Mapping[str, Any], labels: Mapping[str, int]) -> Any:
    if "labels" in sample:
        return [label_index(one, labels) for one in sample["labels"]]
    if "label" in sample:
        return label_index(sample["label"], labels)
    written = (sample[name] for name in ("target", "answer", "text") if name in sample)
    return next(written)
