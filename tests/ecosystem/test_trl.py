"""trl's SFT and DPO on npu: the CPU's losses."""

import json

import pytest

TRAIN = """
import json
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

words = [f"w{number}" for number in range(60)]
special = {"<unk>": 0, "<pad>": 1, "<eos>": 2}
known = Tokenizer(models.WordLevel(
    special | {word: number + 3 for number, word in enumerate(words)}, unk_token="<unk>"))
known.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=known, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>")

def model():
    set_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=1,
        eos_token_id=2, bos_token_id=None))

def text(start, count):
    return " ".join(words[(start * 7 + step * 3) % 60] for step in range(count))

COMMON = {"output_dir": "out", "per_device_train_batch_size": 4, "max_steps": 3, "max_length": 32,
          "logging_steps": 1, "report_to": [], "save_strategy": "no", "disable_tqdm": True,
          "learning_rate": 1e-2, "bf16": False}

def losses(trainer):
    trainer.train()
    log = trainer.state.log_history
    return [trainer.model.device.type, [entry["loss"] for entry in log if "loss" in entry]]

def sft(**options):
    rows = Dataset.from_list([{"text": text(row, 10)} for row in range(16)])
    return losses(SFTTrainer(model=model(), args=SFTConfig(**COMMON, **options),
                             train_dataset=rows, processing_class=tokenizer))

def dpo(**options):
    rows = Dataset.from_list([
        {"prompt": text(row, 5) + " ", "chosen": text(row + 1, 5), "rejected": text(row + 2, 5)}
        for row in range(16)])
    return losses(DPOTrainer(model=model(), ref_model=model(), args=DPOConfig(**COMMON, **options),
                             train_dataset=rows, processing_class=tokenizer))

print(json.dumps([[train(), train(use_cpu=True)] for train in (sft, dpo)]))
"""


def test_sft_and_dpo_have_the_losses_of_the_cpu(run):
    done = run("python", "-c", TRAIN, NPU_AUTO="1")
    assert done.returncode == 0, done.stderr
    for npu, cpu in json.loads(done.stdout.splitlines()[-1]):
        assert (npu[0], cpu[0]) == ("npu", "cpu")
        assert npu[1] == pytest.approx(cpu[1], abs=1e-5)
        assert len(npu[1]) == 3
