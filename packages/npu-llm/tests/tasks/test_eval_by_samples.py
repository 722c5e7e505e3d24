"""Evaluation of task models on samples, from Python and with `npu-llm eval --data`."""

from __future__ import annotations

import json
import re

import jiwer
import numpy as np
import pytest
import torch
import transformers

from npu_llm import (
    NPUModelForSpeechSeq2Seq,
)
from npu_llm.cli import main
from npu_llm.errors import ContextError, OptionError
from npu_llm.evaluation import evaluate_task

TEXTS = ["the cat sat", "where is bob", "anna lives in paris", "a dog", "who was it"]


def _classes(folder, auto, **given):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = auto.from_pretrained(folder).eval()
    with torch.no_grad():
        return [
            model(**tokenizer(text, return_tensors="pt", **given)).logits[0].argmax(-1)
            for text in TEXTS
        ]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def test_accuracy_of_texts_is_the_share_that_transformers_has_right(checkpoint, compiled):
    auto = transformers.AutoModelForSequenceClassification
    folder = checkpoint("roberta", auto)
    right = [int(one) for one in _classes(folder, auto)]
    names = ["left", "middle", "right"]
    # One by name, one wrong.
    labels = [names[right[0]], (right[1] + 1) % 3, *right[2:]]
    samples = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    model = compiled("SequenceClassification", "roberta")
    for batch_size in (1, 3):
        found = evaluate_task(model, samples, processors=folder, batch_size=batch_size)
        assert found.figures == {"accuracy": 0.8}
        assert (found.predictions, found.samples) == (tuple(right), 5)
    with pytest.raises(OptionError, match="at least one") as caught:
        evaluate_task(model, [], processors=folder)
    assert caught.value.code == "eval-data"


def _answer(model, tokenizer, question, context):
    """The likeliest span of a context that fits whole, looked for one by one."""
    given = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets, texts = given.pop("offset_mapping")[0], given.sequence_ids(0)
    with torch.no_grad():
        result = model(**given)
    starts, ends = result.start_logits[0], result.end_logits[0]
    places = [place for place, text in enumerate(texts) if text == 1]
    spans = [(first, last) for first in places for last in places if first <= last]
    first, last = max(spans, key=lambda span: float(starts[span[0]] + ends[span[1]]))
    return context[offsets[first][0] : offsets[last][1]]


def test_answers_are_the_likeliest_parts_of_their_contexts(checkpoint, compiled):
    auto = transformers.AutoModelForQuestionAnswering
    folder = checkpoint("bert", auto)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reference = auto.from_pretrained(folder).eval()
    context = "Anna lives in Paris, a cat sat on the mat"
    right = [_answer(reference, tokenizer, text, context) for text in TEXTS]
    samples = [
        {"question": text, "context": context, "answer": answer}
        for text, answer in zip(TEXTS, right, strict=True)
    ]
    samples[0]["answer"] = ["bob", "nobody"]
    model = compiled("QuestionAnswering", "bert")
    found = evaluate_task(model, samples, processors=folder)
    assert found.predictions == tuple(right)
    assert found.figures == {"F1": pytest.approx(0.8), "exact match": pytest.approx(0.8)}
    # Windows of 40 tokens: the answer is looked for in all of them.
    long = {"question": "who", "context": f"{'it was a dog ' * 20}{context}", "answer": "bob"}
    assert evaluate_task(model, [long], processors=folder).predictions[0] in long["context"]
    with pytest.raises(ContextError, match="a question of 42") as caught:
        evaluate_task(model, [long | {"question": "a dog " * 20}], processors=folder)
    assert caught.value.code == "context-overflow"


def test_accuracy_of_words_is_by_their_first_tokens(checkpoint, compiled):
    auto = transformers.AutoModelForTokenClassification
    folder = checkpoint("distilbert", auto)
    # A token for each word, between <cls> and <sep>.
    classes = [one[1:-1].tolist() for one in _classes(folder, auto)]
    classes[0][2] = (classes[0][2] + 1) % 3
    samples = [
        {"tokens": text.split(), "labels": labels}
        for text, labels in zip(TEXTS, classes, strict=True)
    ]
    model = compiled("TokenClassification", "distilbert")
    words = sum(map(len, classes))
    assert evaluate_task(model, samples, processors=folder).figures == {
        "accuracy": pytest.approx(1 - 1 / words)
    }


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_accuracy_of_images_and_sounds_read_from_files(
    checkpoint, compiled, shared, tmp_path, capsys, kind
):
    from PIL import Image

    is_image = kind == "image"
    task = "ImageClassification" if is_image else "AudioClassification"
    auto = getattr(transformers, f"AutoModelFor{task}")
    folder = checkpoint("vit" if is_image else "wav2vec2", auto)
    compiled(task, "vit" if is_image else "wav2vec2")
    processor = transformers.AutoImageProcessor if is_image else transformers.AutoFeatureExtractor
    prepare = processor.from_pretrained(folder)
    draws = np.random.default_rng(3)
    lines = []
    reference = auto.from_pretrained(folder).eval()
    for number in range(4):
        if is_image:
            picture = Image.fromarray(draws.integers(0, 255, (40, 30, 3), dtype=np.uint8))
            picture.save(tmp_path / f"{number}.png")
            given = prepare(picture, return_tensors="pt")
        else:
            sound = (draws.normal(size=1500 + 300 * number) * 8000).astype("<i2")
            _write_wave(tmp_path / f"{number}.wav", sound)
            given = prepare(sound / 2**15, sampling_rate=16000, return_tensors="pt")
        with torch.no_grad():
            right = int(reference(**given).logits.argmax())
        file = f"{number}.{'png' if is_image else 'wav'}"
        lines.append({kind: file, "label": right if number else (right + 1) % 3})
    cache = shared.cache_dir(folder)
    code, out, err = _eval(folder, cache, tmp_path, lines, capsys, "--compare", "none")
    assert code == 0, err
    assert "4 samples" in out
    assert "75.00%" in out


def test_word_errors_are_those_of_transformers_transcripts(checkpoint, compiled):
    folder = checkpoint("wav2vec2-layer", transformers.AutoModelForCTC)
    draws = np.random.default_rng(5)
    sounds = [draws.normal(size=length).astype(np.float32) for length in (4000, 6000)]
    recognize = transformers.pipeline(
        "automatic-speech-recognition",
        model=transformers.AutoModelForCTC.from_pretrained(folder),
        feature_extractor=transformers.AutoFeatureExtractor.from_pretrained(folder),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
        device="cpu",
    )
    texts = [recognize(sound)["text"] for sound in sounds]
    assert all(texts)
    right = ["three small words", texts[1]]
    samples = [{"audio": one, "text": text} for one, text in zip(sounds, right, strict=True)]
    model = compiled("CTC", "wav2vec2-layer")
    found = evaluate_task(model, samples, processors=folder)
    assert found.predictions == tuple(texts)
    plain = transformers.models.whisper.english_normalizer.BasicTextNormalizer()
    both = [[plain(text).strip() for text in some] for some in (right, texts)]
    assert found.figures["WER"] == pytest.approx(jiwer.wer(*both))
    assert 0 < found.figures["CER"] == jiwer.cer(*both)


def test_whisper_answers_samples_in_the_language_asked_for(whisper, shared):
    at = np.arange(2 * 16000) / 16000
    sound = (np.sin(2 * np.pi * (200 + 40 * np.floor(at)) * at) / 4).astype(np.float32)
    # Letters alone: with random weights it would write times, and end.
    vocabulary = transformers.AutoConfig.from_pretrained(whisper).vocab_size
    asked = {"language": "de", "max_new_tokens": 12, "suppress_tokens": [*range(256, vocabulary)]}
    recognize = transformers.pipeline(
        "automatic-speech-recognition",
        model=transformers.WhisperForConditionalGeneration.from_pretrained(whisper),
        feature_extractor=transformers.AutoFeatureExtractor.from_pretrained(whisper),
        tokenizer=transformers.AutoTokenizer.from_pretrained(whisper),
        device="cpu",
    )
    text = recognize({"raw": sound, "sampling_rate": 16000}, generate_kwargs=asked)["text"]
    assert text
    model = shared.load(NPUModelForSpeechSeq2Seq, whisper, dtype="float32")
    samples = [{"audio": sound, "text": "zwei Töne"}]
    found = evaluate_task(model, samples, processors=whisper, generate=asked)
    assert found.predictions == (text,)
    assert found.figures["WER"] > 0


def test_vectors_are_compared_with_those_in_float32(checkpoint, compiled, shared, tmp_path, capsys):
    folder = checkpoint("bert", transformers.AutoModel)
    models = [
        compiled("FeatureExtraction", "bert"),
        compiled("FeatureExtraction", "bert", dtype="int8"),
    ]
    cache = shared.cache_dir(folder)
    lines = [{"text": text} for text in TEXTS]
    report = tmp_path / "eval.json"
    asked = ("--dtype", "int8", "--json", str(report))
    code, out, err = _eval(folder, cache, tmp_path, lines, capsys, *asked)
    assert code == 0, err
    exact, small = json.loads(report.read_text())
    assert exact["cosine"] == pytest.approx(1)
    both = [model.encode(TEXTS) for model in models]
    cosines = torch.nn.functional.cosine_similarity(*both)
    assert small["cosine"] == pytest.approx(float(cosines.mean()), abs=1e-6)
    assert small["least cosine"] == pytest.approx(float(cosines.min()), abs=1e-6)
    assert small["loss"] == pytest.approx(100 * (1 - float(cosines.mean())), abs=1e-4)
    assert f"{small['cosine']:.6f}" in out
    limit = ("--dtype", "int8", "--max-loss")
    assert _eval(folder, cache, tmp_path, lines, capsys, *limit, "50")[0] == 0
    assert _eval(folder, cache, tmp_path, lines, capsys, *limit, "-1")[0] == 1


@pytest.mark.parametrize(
    "content, code, received",
    [
        (None, "eval-data", "No such file"),
        (b"", "eval-data", "none"),
        (b"\xff\xfe", "text-encoding", "byte"),
        (b'\n{"text": "a"}\n{"text": ', "eval-data", "line 3"),
        (b'["a"]', "eval-data", "line 1.*a list"),
        (b'{"label": 1}', "eval-data", "no text"),
    ],
)
def test_a_file_without_samples_is_one_sentence(
    checkpoint, cache, tmp_path, capsys, content, code, received
):
    folder = checkpoint("bert", transformers.AutoModel)
    ended, out, err = _eval(folder, cache, tmp_path, content, capsys)
    assert (ended, out) == (2, "")
    assert err.rstrip().endswith(f"[{code}]")
    assert "Traceback" not in err
    assert re.search(received, err)


def test_options_and_models_that_do_not_go_with_samples(checkpoint, cache, tmp_path, capsys, llama):
    encoder = checkpoint("bert", transformers.AutoModel)
    lines = [{"text": "a cat"}]
    for folder, more, code in (
        (encoder, ("--window", "8"), "eval-data"),
        (encoder, ("--to", "deu_Latn"), "language-unknown"),
        (encoder, ("--compare", "none"), "eval-compare"),
        (llama.folder, (), "eval-data"),
        (checkpoint("bert", transformers.AutoModelForMaskedLM), (), "eval-task"),
    ):
        ended, _, err = _eval(folder, cache, tmp_path, lines, capsys, *more)
        assert (ended, err.rstrip().rpartition(" ")[2]) == (2, f"[{code}]"), err
    assert main(["eval", "--model", str(encoder), "--cache-dir", str(cache)]) == 2
    assert "--data" in capsys.readouterr().err


def _eval(folder, cache, place, lines, capsys, *more):
    data = place / "samples.jsonl"
    if isinstance(lines, list):
        data.write_text("\n".join(map(json.dumps, lines)))
    elif lines is not None:
        data.write_bytes(lines)
    options = ("--model", str(folder), "--cache-dir", str(cache), "--data", str(data))
    code = main(["eval", *options, *more])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def _write_wave(path, sound):
    import wave

    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(sound.tobytes())
