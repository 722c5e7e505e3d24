import pytest

from npu_llm.entries.build import load_pipeline
from npu_llm.entries.entry import ORIGINS
from npu_runtime import layer_recording, observe


@pytest.fixture
def told():
    """What programs tell of their layers while these are recorded."""
    events = []

    def hear(new):
        events.extend(event for event in new if event.category == "layer_origins")

    observe.add_listener(hear)
    layer_recording.start(first=0, every=0)
    events.clear()
    yield events
    layer_recording.stop()
    observe.remove_listener(hear)


@pytest.mark.parametrize("pipeline", ["dynamic", "static"])
def test_program_that_is_loaded_while_layers_are_recorded_tells_their_modules(
    llama, told, pipeline
):
    model = llama.ours(pipeline=pipeline)
    told.clear()
    load_pipeline(model._entry, model._entry.compiled)
    (event,) = told
    assert event.name == model._entry.name
    modules = {module for module, _ in event.args["origins"].values()}
    assert "model.layers.0.self_attn" in modules
    assert "model.layers.1.mlp.down_proj" in modules


def test_entry_of_before_has_no_origins(llama, tmp_path):
    entry = llama.ours()._entry
    (entry.folder / ORIGINS).rename(tmp_path / ORIGINS)
    try:
        assert entry.origins == {}
    finally:
        (tmp_path / ORIGINS).rename(entry.folder / ORIGINS)
