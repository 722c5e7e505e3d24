import json

import pytest

from npu_compiler.graph.kept_origins import kept_origins
from npu_compiler.openvino_core import openvino_core
from npu_llm import NPUModelForCausalLM, OptionError
from npu_llm.models.entry import ORIGINS
from npu_llm.models.load import load_entry
from npu_runtime import layer_recording, observe


@pytest.fixture
def told():
    """Layers that programs report while they are recorded."""
    events = []

    def hear(new):
        events.extend(event for event in new if event.category == "layer_origins")

    observe.add_listener(hear)
    layer_recording.start(first=0, every=0)
    events.clear()
    yield events
    layer_recording.stop()
    observe.remove_listener(hear)


def test_program_that_is_loaded_while_layers_are_recorded_tells_their_modules(
    llama, told, each_openvino_pipeline
):
    model = llama.ours(pipeline=each_openvino_pipeline)
    told.clear()
    load_entry(model._entry, model._entry.compiled)
    (event,) = told
    assert event.name == model._entry.name
    modules = {module for module, _ in event.args["origins"].values()}
    assert "model.layers.0.self_attn" in modules
    assert "model.layers.1.mlp.down_proj" in modules


def test_a_program_on_disk_keeps_the_origins_of_its_calls(llama, each_openvino_pipeline):
    entry = llama.ours(pipeline=each_openvino_pipeline)._entry
    assert kept_origins(openvino_core().read_model(entry.model_path)) == entry.origins


def test_entry_of_before_has_no_origins(llama, tmp_path, openvino_pipeline):
    entry = llama.ours(pipeline=openvino_pipeline)._entry
    (entry.folder / ORIGINS).rename(tmp_path / ORIGINS)
    try:
        assert entry.origins == {}
    finally:
        (tmp_path / ORIGINS).rename(entry.folder / ORIGINS)


@pytest.mark.parametrize(
    "kind, says, bound",
    [
        pytest.param("bloom", {"seq_length": 24}, 24, id="one name that few know"),
        pytest.param("llama", {"seq_length": 24}, 24, id="before the class's default"),
        pytest.param("llama", {}, 2048, id="the class's default"),
    ],
)
def test_too_large_max_context_is_refused_at_each_start(save_tiny, tmp_path, kind, says, bound):
    folder = tmp_path / "model"
    save_tiny(kind, folder)
    config = json.loads((folder / "config.json").read_text())
    for name in ("max_position_embeddings", "n_positions"):
        config.pop(name, None)
    (folder / "config.json").write_text(json.dumps(config | says))

    def start(max_context):
        return NPUModelForCausalLM.from_pretrained(
            folder, dtype="float32", max_context=max_context, cache_dir=tmp_path / "cache"
        )

    def is_refused():
        with pytest.raises(OptionError, match=f"at most {bound:,}") as caught:
            start(bound + 1)
        return caught.value.code == "max-context"

    assert is_refused()
    assert start(bound).context_length == bound
    assert start(None).context_length == bound
    assert is_refused()


def test_a_build_says_how_far_each_long_stage_is(save_tiny, tmp_path):
    save_tiny("llama", tmp_path / "model")
    seen = []
    NPUModelForCausalLM.from_pretrained(
        tmp_path / "model",
        pipeline="kernels",
        dtype="float32",
        cache_dir=tmp_path / "cache",
        on_progress=lambda stage, share: seen.append((stage.name, share, stage.doing)),
    )
    ends = [name for name, share, doing in seen if share == 1.0 and not doing]
    assert ends == [
        "check", "imports", "weights", "tokenizer", "capture", "lower", "pack", "reference", "save",
        "compile",
    ]  # fmt: skip
    for name, what in {"capture": "module", "pack": "weight", "reference": "module"}.items():
        counted = [
            (share, doing) for stage, share, doing in seen if stage == name and what in doing
        ]
        assert counted[0][1].startswith(f"{what} 1 of ")
        assert counted[-1][0] == 1.0
