import pytest
import transformers


@pytest.fixture
def run(m2m, run_task):
    return lambda *arguments: run_task("translate", m2m, *arguments)


def test_each_line_becomes_one_and_blank_ones_stay(run, m2m):
    code, out, err = run("--prefix", "to z: ", "--max-new-tokens", "8", "the fox\n\na dog")
    assert code == 0, err
    model = transformers.T5ForConditionalGeneration.from_pretrained(m2m)
    tokenizer = transformers.AutoTokenizer.from_pretrained(m2m)
    expected = []
    for line in ("to z: the fox", "to z: a dog"):
        given = tokenizer(line, return_tensors="pt")
        found = model.generate(
            input_ids=given["input_ids"], attention_mask=given["attention_mask"], max_new_tokens=8
        )
        expected.append(tokenizer.decode(found[0], skip_special_tokens=True))
    assert out == f"{expected[0]}\n\n{expected[1]}\n"


def test_languages_of_a_model_without_are_refused(run):
    code, out, err = run("--to", "deu_Latn", "the fox")
    assert code != 0
    assert out == ""
    assert "deu_Latn" in err
    assert err.rstrip().endswith("[language-unknown]")


def test_text_must_not_be_blank(run):
    code, _, err = run("  ")
    assert code != 0
    assert "[empty-prompt]" in err
