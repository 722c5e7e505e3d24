"""npu as a key of `max_memory`, for functions that know indices alone."""

from npu_runtime.hugging_face.memory_keys import with_indices


def counted(sizes=None):
    """As accelerate does it: bytes for texts, in the dictionary that is given."""
    if sizes is None:
        return "all there is"
    sizes.update({key: 1000 if size == "1KB" else size for key, size in sizes.items()})
    return dict(sizes)


def test_npu_is_its_index_and_other_keys_stay():
    sizes = {"npu": "1KB", "cpu": 7}
    assert with_indices(counted, sizes) == {0: 1000, "cpu": 7}
    assert sizes == {"npu": 1000, "cpu": 7}
    assert with_indices(counted, {"npu:0": 3}) == {0: 3}


def test_what_does_not_name_npu_is_passed_on():
    sizes = {0: "1KB"}
    assert with_indices(counted, sizes) == {0: 1000}
    assert sizes == {0: 1000}
    assert with_indices(counted) == with_indices(counted, None) == "all there is"
