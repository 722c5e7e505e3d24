"""Two nodes of Ray on this machine; run by hand where ray is installed, which CI has not."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import httpx
import pytest

from npu_llm.errors import OptionError

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),  # ray's own
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: npu-llm[ray]"),
]

PORT = 8637
SYSTEMS = ["be brief", "be kind", "be exact", "be a cat"]


@pytest.fixture(scope="module")
def deployed(save_speaker, tmp_path_factory):
    """A small model on two nodes; yields its address."""
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    from npu_llm.serving.ray_app import app

    folder = save_speaker(tmp_path_factory.mktemp("model"), context=1024, num_key_value_heads=2)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        cache = str(tmp_path_factory.mktemp("cache"))
        given = {"model": str(folder), "alias": "small", "dtype": "float32", "cache_dir": cache,
                 "replicas": "2"}  # fmt: skip
        serve.run(app(given))
        yield f"http://127.0.0.1:{PORT}"
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


def ask(url, number, **more):
    system = {"role": "system", "content": SYSTEMS[number % len(SYSTEMS)] * 8}
    body = {"messages": [system, {"role": "user", "content": f"the {number}"}], "max_tokens": 40,
            "temperature": 0, "ignore_eos": True, **more}  # fmt: skip
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300)


def replicas():
    """The actors of the model, with their nodes."""
    from ray.util.state import list_actors

    found = list_actors(filters=[("state", "=", "ALIVE")])
    return [one for one in found if "#replica#" in (one.name or "")]


def test_a_replica_that_is_killed_under_load_costs_no_answer(deployed):
    import ray

    alone = [ask(deployed, number).json()["choices"][0]["message"] for number in range(8)]
    assert len({one["node_id"] for one in replicas()}) == 2
    stop, answers = threading.Event(), []

    def client(first):
        number = first
        while not stop.is_set():
            answers.append((number, ask(deployed, number)))
            number = (number + 3) % 8

    with ThreadPoolExecutor(8) as threads:
        clients = [threads.submit(client, number) for number in range(8)]
        time.sleep(3)
        for victim in replicas()[:1]:
            handle = ray.get_actor(victim["name"], namespace="serve")
            ray.kill(handle, no_restart=False)
        before = len(answers)
        time.sleep(20)
        stop.set()
        for one in clients:
            one.result()
    assert len(answers) > before + 20
    for number, answer in answers:
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"] == alone[number]


def test_what_begins_alike_goes_to_one_replica(deployed):
    for number in range(16):
        ask(deployed, number)
    time.sleep(2)  # replicas report their prefixes
    cached = [
        ask(deployed, number).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        for number in range(16)
    ]
    assert all(count >= 16 for count in cached), cached


def test_refusals_and_streams_come_through(deployed):
    assert ask(deployed, 0, best=3).json()["error"]["code"] == "request-unsupported"
    text = ask(deployed, 0, stream=True).text
    assert text.rstrip().endswith("data: [DONE]")
    assert json.loads(text.split("\n\n")[0].removeprefix("data: "))["model"] == "small"
    assert httpx.get(f"{deployed}/v1/models", timeout=60).json()["data"][0]["id"] == "small"
    assert httpx.get(deployed, timeout=60).headers["content-type"].startswith("text/html")


def test_arguments_are_checked():
    from npu_llm.serving.ray_app import app

    with pytest.raises(OptionError, match=r"`best` must be an argument.*\[ray-argument\]"):
        app({"best": "3"})
    with pytest.raises(OptionError, match=r"replicas: .*\[ray-argument\]"):
        app({"replicas": "many"})
