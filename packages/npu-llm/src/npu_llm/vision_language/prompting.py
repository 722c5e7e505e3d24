"""From messages with images to a model's inputs, by its processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npu_llm.checkpoint.processors import load_beside, missing_processor
from npu_llm.errors import ModelError

__all__ = ["load_processor", "prompt_inputs"]


def load_processor(path: str, *, trust_remote_code: bool = False) -> Any:
    """Loads the processor of images and text of a model.

    Args:
        path: the model's folder or name.
        trust_remote_code: whether code that came with the model may run.

    Raises:
        ModelError: [missing-processor] if the model comes without one for images, [remote-code]
            if it is code that is not trusted.
    """
    from transformers import AutoProcessor

    processor = load_beside(AutoProcessor, path, "a processor", trust_remote_code=trust_remote_code)
    # Without its files transformers returns the tokenizer alone.
    if not hasattr(processor, "image_processor"):
        raise missing_processor(path, "a processor", "none for images")
    return processor


def prompt_inputs(processor: Any, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the inputs of generate for a conversation that the model is to continue.

    Args:
        processor: see load_processor.
        messages: each has a role and content: a list of {"type": "image", "image": a PIL image}
            and {"type": "text", "text": ...}.

    Raises:
        ModelError: [chat-template] if the model's template refuses the messages, or if there are
            several and the model has no template.
    """
    from jinja2.exceptions import TemplateError

    if getattr(processor, "chat_template", None):
        try:
            found = processor.apply_chat_template(
                [dict(message) for message in messages],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
            )
        except TemplateError as failure:
            raise _refused(f"its template says: {str(failure).rstrip('.')}") from failure
        return dict(found)
    if len(messages) > 1:
        raise _refused(f"{len(messages)} messages, and the model has no template")
    content = messages[0]["content"]
    images = [one["image"] for one in content if one["type"] == "image"]
    text = " ".join(one["text"] for one in content if one["type"] == "text")
    mark = getattr(processor, "image_token", "<image>")
    # As the processors of such models read it: a place for each image before the text.
    found = processor(
        text=f"{mark * len(images)}{text}", images=images or None, return_tensors="pt"
    )
    return dict(found)


def _refused(got: str) -> ModelError:
    return ModelError(
        f"`messages` must be ones that the model's chat template takes, got: {got}. Ask a single "
        "question, without a system message.",
        code="chat-template",
    )
