"""Converts messages with images to a model's inputs with its processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npu_llm.checkpoint.processors import load_beside, missing_processor
from npu_llm.errors import ModelError

__all__ = ["load_processor", "prompt_inputs"]


def load_processor(path: str, *, trust_remote_code: bool = False) -> Any:
    """Loads a model's processor of images and text.

    Args:
        path: the model's folder or name.
        trust_remote_code: whether to run code that comes with the model.

    Raises:
        ModelError: [missing-processor] if the model has no image processor, [remote-code] if its
            code is not trusted.
    """
    from transformers import AutoProcessor

    processor = load_beside(AutoProcessor, path, "a processor", trust_remote_code=trust_remote_code)
    # Without its files transformers returns only the tokenizer.
    if not hasattr(processor, "image_processor"):
        raise missing_processor(path, "a processor", "none for images")
    return processor


def prompt_inputs(processor: Any, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the inputs of generate for a conversation.

    Args:
        processor: see load_processor.
        messages: each has a role and content: a list of {"type": "image", "image": a PIL image}
            and {"type": "text", "text": ...}.

    Raises:
        ModelError: [chat-template] if the model's template rejects the messages, or for several
            messages without a template.
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
            raise _refused(f"its template reports:  {str(failure).rstrip('.')}") from failure
        return dict(found)
    if len(messages) > 1:
        raise _refused(f"{len(messages)} messages, and the model has no template")
    content = messages[0]["content"]
    images = [one["image"] for one in content if one["type"] == "image"]
    text = " ".join(one["text"] for one in content if one["type"] == "text")
    mark = getattr(processor, "image_token", "<image>")
    # As processors of such models read it: an image mark per image before the text.
    found = processor(
        text=f"{mark * len(images)}{text}", images=images or None, return_tensors="pt"
    )
    return dict(found)


def _refused(got: str) -> ModelError:
    return ModelError(
        f"`messages` must suit the model's chat template, got: {got}. Ask a single question, "
        "without a system message.",
        code="chat-template",
    )
