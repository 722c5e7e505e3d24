"""Creates the weights for benchmarks/llm.py, and each engine's format of them.

    python _llm_files.py WORK MODEL checkpoint|openvino|gguf [PRECISION]

Run it with the interpreter of the engine; existing files are kept. A folder gets its final name
once it is complete.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

__all__ = ["GGUF_KINDS", "MODELS", "form_path"]

# Name -> weights. The Llama has TinyLlama's sizes.
MODELS: dict[str, dict[str, Any]] = {
    "smollm2-135m": {},
    "llama-1.1b": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
}
# llama.cpp's quantizations closest to a precision, with the numbers of its llama_ftype.
GGUF_KINDS = {
    "F32": 0, "BF16": 32, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7, "Q2_K": 10,
    "Q3_K_M": 12, "Q4_K": 14, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30,
}  # fmt: skip
_PURE = {"Q4_K"}  # all matrices in this type; other mixes give sensitive ones more bits


def form_path(work: Path, model: str, form: str, kind: str = "") -> Path:
    """Returns the path of a model's format: a folder, or llama.cpp's file."""
    if form == "gguf":
        return work / model / f"model-{kind}.gguf"
    return work / model / "-".join(part for part in (form, kind) if part)


def make_checkpoint(work: Path, model: str, target: Path) -> None:
    """Writes a transformers checkpoint: real weights as float32, random ones as bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from npu_llm.checkpoint.source import find_installed_weights

    source = find_installed_weights()
    place = {"pretrained_model_name_or_path": source.folder, "gguf_file": source.gguf_file}
    # The random model gets the real one's tokenizer: OpenVINO GenAI does not start without one.
    AutoTokenizer.from_pretrained(**place).save_pretrained(target)
    if MODELS[model]:
        torch.manual_seed(0)
        config = LlamaConfig(**MODELS[model], tie_word_embeddings=False)
        made = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    else:
        read = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
        del read.config.quantization_config
        # transformers does not save weights that it dequantized from a GGUF file.
        made = LlamaForCausalLM(LlamaConfig.from_dict(read.config.to_diff_dict()))
        made.load_state_dict(read.state_dict())
    made.save_pretrained(target)


def make_openvino(work: Path, model: str, target: Path, precision: str) -> None:
    """Exports with optimum-intel in float32, and derives the other precisions from it."""
    import openvino
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
    from transformers import AutoTokenizer

    checkpoint = form_path(work, model, "checkpoint")
    exact = form_path(work, model, "openvino", "float32")
    if precision == "float32":
        exported = OVModelForCausalLM.from_pretrained(
            checkpoint, export=True, compile=False, dtype="float32", load_in_8bit=False
        )
        exported.save_pretrained(target)
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        tokenizer.save_pretrained(target)
        save_tokenizer(tokenizer, target)
        return
    if not exact.exists():
        raise SystemExit(f"{exact} must be made first")
    others = [file for file in exact.iterdir() if not file.name.startswith("openvino_model.")]
    for file in others:
        shutil.copy(file, target)
    if precision == "bfloat16":
        # Like its --weight-format fp16; the hint sets bfloat16 arithmetic.
        read = openvino.Core().read_model(exact / "openvino_model.xml")
        openvino.save_model(read, target / "openvino_model.xml", compress_to_fp16=True)
        return
    # npu-llm has zero points too, and a 4-bit head unless the embedding is tied to it.
    four = {"bits": 4, "group_size": 64, "ratio": 1.0, "all_layers": bool(MODELS[model])}
    options = OVWeightQuantizationConfig(
        sym=False, **(four if precision == "int4" else {"bits": 8})
    )
    OVModelForCausalLM.from_pretrained(
        exact, compile=False, quantization_config=options
    ).save_pretrained(target)


def save_tokenizer(tokenizer: Any, target: Path) -> None:
    """Writes the tokenizer as OpenVINO models for OpenVINO GenAI."""
    import openvino
    import openvino_tokenizers

    models = openvino_tokenizers.convert_tokenizer(tokenizer, with_detokenizer=True)
    for name, model in zip(("tokenizer", "detokenizer"), models, strict=True):
        openvino.save_model(model, target / f"openvino_{name}.xml")


def make_gguf(work: Path, model: str, target: Path, kind: str) -> None:
    """Writes llama.cpp's file: in float32 with gguf, in other types with llama.cpp from that."""
    if kind == "F32":
        write_gguf(form_path(work, model, "checkpoint"), target)
        return
    import llama_cpp

    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = GGUF_KINDS[kind]
    options.pure = kind in _PURE
    options.nthread = len(os.sched_getaffinity(0))
    source = str(form_path(work, model, "gguf", "F32")).encode()
    failed = llama_cpp.llama_model_quantize(source, str(target).encode(), ctypes.byref(options))
    if failed:
        raise SystemExit(f"llama_model_quantize({source!r}, {kind}) gave {failed}")


def write_gguf(checkpoint: Path, target: Path) -> None:
    """Writes a Llama's weights in float32, with SmolLM2's vocabulary."""
    import gguf
    from safetensors.torch import load_file

    config = json.loads((checkpoint / "config.json").read_text())
    weights: dict[str, Any] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        weights |= load_file(file)
    heads, pairs = config["num_attention_heads"], config["num_key_value_heads"]
    rope = config.get("rope_parameters") or {}
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(pairs)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(0)
    add_vocabulary(writer, checkpoint, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, weight in weights.items():
        array = weight.float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            # llama.cpp rotates adjacent rows, transformers rotates halves.
            count = heads if "q_proj" in name else pairs
            halves = array.reshape(count, 2, array.shape[0] // count // 2, array.shape[1])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        known = names.get_name(name, try_suffixes=(".weight",))
        if known is None:
            raise SystemExit(f"gguf has no name for {name}")
        writer.add_tensor(known, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer: Any, checkpoint: Path, config: dict[str, Any]) -> None:
    """Adds the tokenizer of a checkpoint, truncated to the model's vocabulary size."""
    import gguf

    made = json.loads((checkpoint / "tokenizer.json").read_text())
    ids = made["model"]["vocab"] | {one["content"]: one["id"] for one in made["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)[: config["vocab_size"]]
    known = set(tokens)
    special = {one["content"] for one in made["added_tokens"] if one["special"]}
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.CONTROL if one in special else kinds.NORMAL for one in tokens])
    pairs = [one.split(" ") if isinstance(one, str) else one for one in made["model"]["merges"]]
    merges = [pair for pair in pairs if {*pair, "".join(pair)} <= known]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((checkpoint / "chat_template.jinja").read_text())


def main(work: str, model: str, form: str, kind: str = "") -> None:
    target = form_path(Path(work), model, form, kind)
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    if partial.is_dir():
        shutil.rmtree(partial)
    partial.unlink(missing_ok=True)
    if form == "gguf":
        make_gguf(Path(work), model, partial, kind)
    else:
        partial.mkdir()
        if form == "checkpoint":
            make_checkpoint(Path(work), model, partial)
        else:
            make_openvino(Path(work), model, partial, kind)
    partial.rename(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
