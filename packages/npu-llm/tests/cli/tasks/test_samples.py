import json

import pytest
import sacrebleu
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from npu_llm.cli.tasks.samples import read_calls
from npu_llm.errors import ModelError
from npu_llm.evaluation.predictions import PredictOptions


def test_code_of_a_tokenizer_runs_only_if_trusted(tmp_path):
    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words)
    made.save_pretrained(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    config.write_text(json.dumps(json.loads(config.read_text()) | own))
    code = "from transformers import PreTrainedTokenizerFast as Fast\nclass Own(Fast):\n    pass\n"
    (tmp_path / "own.py").write_text(code)
    (tmp_path / "lines").write_text("b")

    def load(is_trusted):
        trust = {"trust_remote_code": is_trusted}
        (call,) = read_calls(tmp_path / "lines", str(tmp_path), ("text",), **trust)
        options = PredictOptions(tmp_path, **trust)
        return call, options.load(transformers.AutoTokenizer, "a tokenizer")

    with pytest.raises(ModelError, match=r"\[remote-code\]"):
        load(False)
    call, tokenizer = load(True)
    assert call["input_ids"].tolist() == [[1]]
    assert type(tokenizer).__name__ == "Own"


@pytest.fixture
def measure(tmp_path, run_task):
    """measure(model, samples, *options): exit code, the output of --json, both outputs."""

    def run(model, samples, *more):
        (tmp_path / "samples.jsonl").write_text("\n".join(map(json.dumps, samples)))
        files = ("--data", str(tmp_path / "samples.jsonl"), "--json", str(tmp_path / "out.json"))
        code, out, err = run_task("eval", model, *files, *more)
        found = json.loads((tmp_path / "out.json").read_text()) if code == 0 else None
        return code, found, out + err

    return run


def test_translations_have_the_scores_of_transformers_answers(m2m, measure):
    samples = [
        {"source": "the fox", "target": "a fox"},
        {"source": "to a dog of ours", "target": ["our dog", "dog"]},
    ]
    code, found, said = measure(m2m, samples, "--compare", "none", "--max-new-tokens", "8")
    assert code == 0, said
    assert "measuring float32: 2 samples in " in said
    model = transformers.T5ForConditionalGeneration.from_pretrained(m2m)
    tokenizer = transformers.AutoTokenizer.from_pretrained(m2m)
    answers = []
    for sample in samples:
        given = tokenizer(sample["source"], return_tensors="pt")
        answer = model.generate(
            input_ids=given["input_ids"], attention_mask=given["attention_mask"], max_new_tokens=8
        )
        answers.append(tokenizer.decode(answer[0], skip_special_tokens=True))
    expected = sacrebleu.corpus_chrf(answers, [["a fox", "our dog"], ["a fox", "dog"]])
    assert found[0]["chrF"] == pytest.approx(expected.score, abs=1e-6)
    assert {"BLEU", "samples", "precision", "task", "loss"} < found[0].keys()


def test_files_that_samples_name_must_be_there(whisper, measure):
    code, _, said = measure(whisper, [{"audio": "absent.wav", "text": "a"}])
    assert code == 2
    assert "absent.wav" in said
    assert said.rstrip().endswith("[audio-unreadable]")
