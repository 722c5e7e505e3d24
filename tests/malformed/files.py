"""Files for malformed calls: good ones, damaged ones, and other paths. A separate process writes
them, because it uses the device.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from pathlib import Path

import torch

__all__ = ["write_files"]

_SCRIPT = """
import torch
layer = torch.nn.Linear(4, 4).to("npu")
print(torch.compile(layer, backend="npu")(torch.ones(2, 4, device="npu")).sum().item())
"""


def write_files(folder: Path) -> None:
    """Writes them into a new folder."""
    folder.mkdir()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.environ["XDG_CACHE_HOME"] = str(folder.parent / "cache")
            os.chdir(folder)
            _write()
            code = 0
        except BaseException:  # noqa: BLE001  # printed, by a process that ends
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise SystemExit("malformed: the files were not written")


def _write() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    import npu_compiler
    import npu_llm
    import npu_ops
    import npu_profiler

    Path("folder").mkdir()
    Path("empty.bin").touch()
    Path("garbage.bin").write_bytes(bytes(range(256)) * 8)
    Path("text.txt").write_text("A text of some words, again and again. " * 40)
    Path("script.py").write_text(_SCRIPT)
    Path("raises.py").write_text("raise SystemExit(3)\n")
    Path("syntax.py").write_text("def (:\n")
    Path("truncated.json").write_text('{"traceEvents": [{"ph": "X", "ts": 1')
    Path("truncated.xml").write_text('<?xml version="1.0"?><net name="x" version="11"><layers>')
    Path("dangling").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    sizes = {"vocab_size": 128, "hidden_size": 16, "intermediate_size": 16}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained("model")
    _tokenizer("model")
    whole = Path("model/model.safetensors").read_bytes()
    Path("truncated.safetensors").write_bytes(whole[: len(whole) // 2])
    npu_llm.load("model", max_context=64)  # so that each batch has it in its cache
    npu_compiler.export(torch.nn.Linear(4, 4), (torch.zeros(2, 4),), "exported")
    with npu_ops.debugging.OpCapture("capture"):
        torch.ones(3, device="npu").relu()
    with npu_profiler.trace("trace.json"):
        torch.ones(3, device="npu").relu().cpu()
    shutil.copytree("model", "damaged")
    Path("damaged/config.json").write_text(json.dumps({"model_type": "llama"})[:-4])


def _tokenizer(folder: str) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "</s>": 1, **{chr(code): code for code in range(33, 127)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
