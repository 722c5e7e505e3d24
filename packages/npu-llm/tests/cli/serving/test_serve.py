import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

import forked_python
from npu_llm import NPUModelForCausalLM
from npu_llm.cli.serving.serve import main
from npu_llm.errors import ModelError, OptionError, ServerError


class Running:
    """The command in a separate process."""

    def __init__(self, checkpoint, cache_dir, *options, preload):
        line = [sys.executable, "-m", "npu_llm.cli", "serve", "--model", str(checkpoint),
                "--cache-dir", str(cache_dir), "--dtype", "float32", "--port", "0",
                *options]  # fmt: skip
        self.process = forked_python.start(
            line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, preload=preload
        )
        self.said = []
        for text in self.process.stderr:
            self.said.append(text)
            if text.startswith("serving "):
                self.url, _, _ = text.partition(" at ")[2].partition(",")
                break

    def end(self, number=signal.SIGTERM):
        """Sends a signal; returns exit code, standard output and standard error since the start."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.fixture
def running(cache_dir, shared, preload):
    """running(checkpoint, *options): the command, once it serves."""

    def start(checkpoint, *options):
        shared.load(NPUModelForCausalLM, checkpoint, dtype="float32")
        return Running(checkpoint, shared.cache_dir(checkpoint), *options, preload=preload)

    return start


def ask(url, count, **more):
    body = {"messages": [{"role": "user", "content": "a secret prompt"}], "max_tokens": count}
    return {"url": f"{url}/v1/chat/completions", "json": {**body, **more}, "timeout": 60}


def test_a_signal_ends_it_once_what_runs_is_answered(talkative, running):
    options = ("--alias", "small", "--log-format", "json", "--grace", "120")
    server = running(talkative, *options)
    assert "small at http://127.0.0.1" in server.said[-1]
    body = ask(server.url, 3000, stream=True, logit_bias={"2": -100})
    with httpx.stream("POST", **body) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        text = "\n".join(lines)
    assert text.rstrip().endswith("[DONE]")
    out, err = server.process.communicate(timeout=60)
    assert (server.process.returncode, out) == (0, "")
    (line,) = [json.loads(one) for one in err.splitlines() if "chat/completions" in one]
    assert (line["status"], line["completion_tokens"], line["model"]) == (200, 3000, "small")
    assert "secret" not in err + "".join(server.said)


def test_grace_bounds_how_long_that_takes(talkative, running):
    server = running(talkative, "--grace", "1")
    body = ask(server.url, 60_000, stream=True, logit_bias={"2": -100})
    with httpx.stream("POST", **body) as stream:
        next(stream.iter_lines())
        started = time.monotonic()
        code, _, _ = server.end(signal.SIGINT)
    assert code == 0
    assert time.monotonic() - started < 15


def test_a_socket_of_the_file_system_serves(checkpoint, running, tmp_path):
    place = tmp_path / "s"
    server = running(checkpoint, "--uds", str(place))
    transport = httpx.HTTPTransport(uds=str(place))
    with httpx.Client(transport=transport) as client:
        answer = client.post(**ask("http://any.example", 4)).json()
    assert answer["usage"]["completion_tokens"] <= 4
    assert server.end()[0] == 0


def test_a_port_that_is_taken_is_told(checkpoint, cache_dir):
    options = ["--model", str(checkpoint), "--cache-dir", str(cache_dir), "--dtype", "float32"]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ServerError, match="server-port"):
            main([*options, "--port", str(other.getsockname()[1])])


@pytest.mark.parametrize(
    "options, code",
    [
        (["--host", "0.0.0.0"], "server-address"),
        (["--api-key", "two words"], "api-key"),
        (["--api-key-file", "/nowhere"], "api-key"),
        (["--tls-cert", __file__], "server-tls"),
        (["--tls-cert", __file__, "--tls-key", __file__], "server-tls"),
        (["--alias", "a", "--alias", "b"], "model-alias"),
        (["--model", "x/same", "--model", "y/same"], "model-alias"),
        (["--max-step-tokens", "8"], "step-tokens"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_a_model_starts(options, code):
    with pytest.raises(OptionError, match=rf"\[{code}\]"):
        main(options)


def test_a_model_that_is_not_there_is_told_at_once():
    with pytest.raises(ModelError):
        main(["--model", "/nowhere/model.gguf"])


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(OptionError, match=r"npu-llm\[serve\].*missing-serve"):
        main([])


def test_help_imports_nothing_of_the_server():
    code = "from npu_llm.cli import main; main(['--help']); main(['serve', '--help'])"
    found = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "--max-step-tokens" in found.stdout
    for name in ("starlette", "uvicorn", "pydantic", "transformers"):
        assert f" {name}\n" not in found.stderr


def test_clients_that_leave_halfway_take_nothing_with_them(talkative, tmp_path):
    soak = Path(__file__).parents[2] / "load" / "soak.py"
    command = [sys.executable, "-W", "ignore", soak, "--minutes", "0.05", "--clients", "12"]
    command += ["--model", talkative, "--stay", "0.02"]
    variables = {**os.environ, "NPU_LLM_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=variables
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
