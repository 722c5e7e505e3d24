import pytest
import torch
import transformers

from npu_llm.cli import main
from npu_llm.cli.arguments import scaled_path


def test_a_merged_folder_is_written_and_named(capsys, checkpoint, save_adapter, tmp_path):
    adapter = save_adapter("one", "self_attn.q_proj")
    output = tmp_path / "merged"
    code = main(["merge", str(checkpoint), "--adapter", f"{adapter}:0.5", "-o", str(output)])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert out.strip() == str(output)
    assert "in float32" in err
    assert [line.split(":")[0] for line in err.splitlines()][:-1] == [
        "loading weights", "merging adapters", "writing the model",
    ]  # fmt: skip
    assert (output / "tokenizer.json").is_file()


def test_an_answer_with_an_adapter_is_another(in_process, checkpoint, save_adapter):
    adapter = save_adapter("one", "self_attn.q_proj", "mlp.down_proj")
    arguments = ("generate", "--greedy", "--max-new-tokens", "8", "--dtype", "float32")
    plain = in_process(*arguments, "fox")
    adapted = in_process(*arguments, "--adapter", str(adapter), "fox")
    assert adapted[0] == 0, adapted[2]
    assert "adapters: one" in adapted[2]
    assert adapted[1] != plain[1]
    assert in_process(*arguments, "--adapter", f"{adapter}:0", "fox")[1] == plain[1]


@pytest.mark.parametrize(
    "text,path,scale",
    [("a/b", "a/b", 1.0), ("a/b:0.25", "a/b", 0.25), ("a:b", "a:b", 1.0), ("a:-2", "a", -2.0)],
)
def test_a_scale_follows_a_colon(text, path, scale):
    found = scaled_path(text)
    assert (str(found[0]), found[1]) == (path, scale)


def test_a_path_that_exists_is_no_scale(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:3").mkdir()
    assert scaled_path("a:3")[1] == 1.0


@pytest.mark.filterwarnings("ignore")  # PEFT's and transformers' own about each other
def test_an_adapted_classifier_is_merged_with_its_new_classes(capsys, tmp_path):
    peft = pytest.importorskip("peft")
    auto = transformers.AutoModelForSequenceClassification
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=44, num_labels=3,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    lora = peft.LoraConfig(
        r=3, target_modules=["query", "value"], init_lora_weights=False, task_type="SEQ_CLS"
    )
    adapted = peft.get_peft_model(auto.from_pretrained(tmp_path / "bert"), lora)
    with torch.no_grad():
        adapted.get_submodule("base_model.model.classifier").weight.add_(0.5)
    adapted.save_pretrained(tmp_path / "adapter")
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        expected = adapted.merge_and_unload().eval()(ids).logits
    arguments = ("--adapter", str(tmp_path / "adapter"), "-o", str(tmp_path / "merged"))
    code = main(["merge", str(tmp_path / "bert"), *arguments])
    assert code == 0, capsys.readouterr().err
    with torch.no_grad():
        found = auto.from_pretrained(tmp_path / "merged").eval()(ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
