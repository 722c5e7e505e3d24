"""Language models on the npu device, with the `generate` interface of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_command.import_hooks import lazy_names
from npu_llm.errors import (
    CacheError,
    CaptureError,
    ContextError,
    LlmError,
    MemoryNeedError,
    ModelError,
    OptionError,
    ServerError,
    SessionError,
)

if TYPE_CHECKING:
    from npu_llm.adapters.merging import merge
    from npu_llm.chat.chat_session import ChatSession
    from npu_llm.chat.reply import Reply, ReplyStream
    from npu_llm.compat.intel_npu_acceleration_library.modelling import NPUModel
    from npu_llm.encoder_decoders.models import NPUModelForSeq2SeqLM, NPUModelForSpeechSeq2Seq
    from npu_llm.generation.exported_model import ExportedModel
    from npu_llm.generation.lazy_model import load
    from npu_llm.generation.model import NPUModelForCausalLM
    from npu_llm.generation.static_generation import (
        generate_with_static_shape,
        warm_up_decoder_model,
    )
    from npu_llm.models.export import export
    from npu_llm.tasks.auto_model import NPUAutoModel
    from npu_llm.tasks.models import (
        NPUModelForAudioClassification,
        NPUModelForCTC,
        NPUModelForFeatureExtraction,
        NPUModelForImageClassification,
        NPUModelForMaskedLM,
        NPUModelForObjectDetection,
        NPUModelForQuestionAnswering,
        NPUModelForSequenceClassification,
        NPUModelForTokenClassification,
        NPUModelForZeroShotImageClassification,
        Ranked,
    )
    from npu_llm.vision_language.models import NPUModelForImageTextToText

__all__ = [
    "CacheError",
    "CaptureError",
    "ChatSession",
    "ContextError",
    "ExportedModel",
    "LlmError",
    "MemoryNeedError",
    "ModelError",
    "NPUAutoModel",
    "NPUModel",
    "NPUModelForAudioClassification",
    "NPUModelForCTC",
    "NPUModelForCausalLM",
    "NPUModelForFeatureExtraction",
    "NPUModelForImageClassification",
    "NPUModelForImageTextToText",
    "NPUModelForMaskedLM",
    "NPUModelForObjectDetection",
    "NPUModelForQuestionAnswering",
    "NPUModelForSeq2SeqLM",
    "NPUModelForSequenceClassification",
    "NPUModelForSpeechSeq2Seq",
    "NPUModelForTokenClassification",
    "NPUModelForZeroShotImageClassification",
    "OptionError",
    "Ranked",
    "Reply",
    "ReplyStream",
    "ServerError",
    "SessionError",
    "export",
    "generate_with_static_shape",
    "load",
    "merge",
    "warm_up_decoder_model",
]

_HOMES = {
    "ChatSession": "chat.chat_session",
    "ExportedModel": "generation.exported_model",
    "NPUAutoModel": "tasks.auto_model",
    "NPUModel": "compat.intel_npu_acceleration_library.modelling",
    "NPUModelForAudioClassification": "tasks.models",
    "NPUModelForCTC": "tasks.models",
    "NPUModelForCausalLM": "generation.model",
    "NPUModelForFeatureExtraction": "tasks.models",
    "NPUModelForImageClassification": "tasks.models",
    "NPUModelForImageTextToText": "vision_language.models",
    "NPUModelForMaskedLM": "tasks.models",
    "NPUModelForObjectDetection": "tasks.models",
    "NPUModelForQuestionAnswering": "tasks.models",
    "NPUModelForSeq2SeqLM": "encoder_decoders.models",
    "NPUModelForSequenceClassification": "tasks.models",
    "NPUModelForSpeechSeq2Seq": "encoder_decoders.models",
    "NPUModelForTokenClassification": "tasks.models",
    "NPUModelForZeroShotImageClassification": "tasks.models",
    "Ranked": "tasks.models",
    "Reply": "chat.reply",
    "ReplyStream": "chat.reply",
    "export": "models.export",
    "generate_with_static_shape": "generation.static_generation",
    "load": "generation.lazy_model",
    "merge": "adapters.merging",
    "warm_up_decoder_model": "generation.static_generation",
}

__getattr__ = lazy_names(__name__, _HOMES)
