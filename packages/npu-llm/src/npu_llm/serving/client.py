"""Client of an OpenAI-compatible server, and a load test over it."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from npu_llm.chat.output_parser import Delta
from npu_llm.errors import OptionError, ServerError

__all__ = [
    "WORDS",
    "Connection",
    "Load",
    "LoadReport",
    "Percentiles",
    "RemoteAnswer",
    "Work",
    "gather",
    "measure",
]

# Kinds of pieces, and the fields of a chunk that have them.
_PIECES: tuple[tuple[Literal["reasoning", "content"], str], ...] = (
    ("reasoning", "reasoning_content"),
    ("content", "content"),
)


@dataclass(frozen=True, kw_only=True)
class RemoteAnswer:
    """A server's answer with its times.

    Attributes:
        text: the text without reasoning.
        reasoning: its reasoning.
        prompt_tokens, cached_tokens, answer_tokens: counts from the server; 0 if it sends none.
        finish: finish reason; "cancelled" if the client stopped it.
        started_s, first_s, ended_s: by time.perf_counter; first_s is None for an empty answer.
        gaps_s: seconds between pieces; a piece may have several tokens.
    """

    text: str
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    finish: str
    started_s: float
    first_s: float | None
    ended_s: float
    gaps_s: tuple[float, ...] = ()
    reasoning: str = ""

    @property
    def time_to_first_token_s(self) -> float | None:
        """Seconds from the request to the first text; None for an empty answer."""
        return None if self.first_s is None else self.first_s - self.started_s

    @property
    def prefilled_tokens(self) -> int:
        """Number of the prompt's tokens that were not in the cache."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second after the first token; None for fewer than two tokens."""
        return 1 / self.time_per_token_s if self.time_per_token_s else None

    @property
    def time_per_token_s(self) -> float | None:
        """Mean seconds per token after the first; None for fewer than two tokens."""
        if self.first_s is None or self.answer_tokens < 2:
            return None
        return (self.ended_s - self.first_s) / (self.answer_tokens - 1)


class Connection:
    """A server's address and key; each request opens a connection."""

    def __init__(self, url: str, *, key: str | None = None, timeout_s: float = 600.0) -> None:
        """Creates a connection.

        Args:
            url: such as http://127.0.0.1:8000, with or without /v1.
            key: API key; None to send none.
            timeout_s: seconds to wait for the next part of an answer.

        Raises:
            OptionError: [server-url] for an invalid address.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError(
                f"`--server` must be an address such as http://127.0.0.1:8000, got {url!r}. Add "
                "the missing part.",
                code="server-url",
            )
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        self.url = url
        self._kind: Any = kinds[parts.scheme]
        self._place = parts.netloc.rpartition("@")[2]
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"

    def models(self) -> list[str]:
        """Returns the names of the server's models.

        Raises:
            ServerError: [server-unreachable], [server-refused].
        """
        with self._request("GET", "/v1/models", None) as response:
            found = json.loads(response.read())
        return [str(one["id"]) for one in found["data"]]

    def loaded(self) -> list[dict[str, Any]]:
        """Returns the models that the server has loaded, with `name` and `context_length`.

        Raises:
            ServerError: [server-unreachable], [server-refused].
        """
        with self._request("GET", "/api/ps", None) as response:
            found: list[dict[str, Any]] = json.loads(response.read())["models"]
        return found

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        on_text: Callable[[str], object] = lambda _: None,
        **fields: Any,
    ) -> RemoteAnswer:
        """Sends a conversation and waits for the answer.

        Args:
            messages: the conversation.
            on_text: called with each piece of the answer. A KeyboardInterrupt stops the answer, and
                the text so far is returned.
            fields: further fields of the request.

        Raises:
            ServerError: [server-unreachable], [server-refused].
        """
        answers: list[RemoteAnswer] = []
        with suppress(KeyboardInterrupt):
            for delta in self.stream(messages, answers, **fields):
                if delta.kind == "content":
                    on_text(delta.text)
        return answers[0]

    def stream(
        self, messages: Sequence[Mapping[str, str]], answers: list[RemoteAnswer], **fields: Any
    ) -> Generator[Delta, None, None]:
        """Yields pieces of text and reasoning; appends the whole answer to `answers`.

        Closing the iterator stops the answer. Arguments and errors are those of `chat`.
        """
        body = {
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        pieces: dict[str, list[str]] = {"reasoning": [], "content": []}
        usage: Mapping[str, Any] = {}
        finish, times = "cancelled", list[float]()
        started_s = time.perf_counter()
        try:
            with self._request("POST", "/v1/chat/completions", body) as response:
                for event in _events(response):
                    choice = (event.get("choices") or [{}])[0]
                    for kind, name in _PIECES:
                        if text := choice.get("delta", {}).get(name):
                            times.append(time.perf_counter())
                            pieces[kind].append(text)
                            yield Delta(kind, text)
                    finish = choice.get("finish_reason") or finish
                    usage = event.get("usage") or usage
        except (KeyboardInterrupt, GeneratorExit):
            finish = "cancelled"
            raise
        finally:
            details = usage.get("prompt_tokens_details") or {}
            answers.append(
                RemoteAnswer(
                    text="".join(pieces["content"]),
                    reasoning="".join(pieces["reasoning"]),
                    prompt_tokens=int(usage.get("prompt_tokens", 0)),
                    cached_tokens=int(details.get("cached_tokens") or 0),
                    answer_tokens=int(usage.get("completion_tokens", len(times))),
                    finish=finish,
                    started_s=started_s,
                    first_s=times[0] if times else None,
                    ended_s=time.perf_counter(),
                    gaps_s=tuple(after - before for before, after in pairwise(times)),
                )
            )

    @contextmanager
    def _request(self, method: str, path: str, body: Any) -> Iterator[http.client.HTTPResponse]:
        connection = self._kind(self._place, timeout=self._timeout_s)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, self._base + path, content, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise _refused(self.url, response)
            yield response
        except (OSError, http.client.HTTPException, ValueError) as failure:
            raise ServerError(
                f"`{self.url}` must be a server that responds, got {failure}. Start it, or check "
                "the address.",
                code="server-unreachable",
            ) from failure
        finally:
            connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yields the events of a response."""
    for line in response:
        name, _, text = line.decode("utf-8").partition(":")
        if name != "data" or text.strip() == "[DONE]":
            continue
        event: dict[str, Any] = json.loads(text)
        if "error" in event:
            raise _refusal(event["error"])
        yield event


def _refused(url: str, response: http.client.HTTPResponse) -> ServerError:
    content = response.read(1 << 16)
    try:
        return _refusal(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return ServerError(
            f"`{url}` must have the responses of OpenAI's API, got {response.status} "
            f"{response.reason}. Check the address.",
            code="server-refused",
        )


def _refusal(error: Mapping[str, Any]) -> ServerError:
    return ServerError(
        f"`server` must accept the request, got: {error.get('message')} Change it, or retry later.",
        code="server-refused",
    )


# Words for generated prompts.
WORDS = [
    "river", "stone", "light", "morning", "quiet", "garden", "letter", "travel", "winter",
    "copper", "music", "window", "bread", "market", "silver", "forest", "paper", "engine",
    "harbor", "sudden", "gentle", "broken", "yellow", "northern", "careful", "distant",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Work:
    """The requests of a load test.

    Attributes:
        clients: number of concurrent clients.
        requests: number of requests.
        prompt_words: minimum and maximum words of a prompt; a word is about a token.
        new_tokens: minimum and maximum tokens of an answer.
        model: the model's name; None for the server's first model.
        seed: seed of the lengths and words.
        fields: further fields of the requests; greedy by default.
    """

    clients: int
    requests: int
    prompt_words: tuple[int, int] = (32, 800)
    new_tokens: tuple[int, int] = (16, 200)
    model: str | None = None
    seed: int = 0
    fields: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0})


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of times, in seconds."""

    p50_s: float
    p95_s: float
    p99_s: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Percentiles | None:
        """Returns percentiles, each a measured time; None without times."""
        if not times:
            return None
        ordered = sorted(times)

        def at(share: float) -> float:
            return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

        return cls(at(0.5), at(0.95), at(0.99))


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """The result of a load test.

    Attributes:
        work: the requests.
        seconds: time from the first request to the last answer.
        answers: number of complete answers.
        refusals: number of other answers by error message.
        finish_reasons: number of complete answers by finish reason; "length" for answers that were
            cut.
        empty: number of complete answers without text.
        prompt_tokens, cached_tokens, tokens: totals of complete answers.
        time_to_first_token, time_per_token, whole: percentiles of complete answers; the second of
            the answers' means.
        time_between_pieces: percentiles of all pieces; a piece may have several tokens.
    """

    work: Work
    seconds: float
    answers: int
    refusals: dict[str, int]
    finish_reasons: dict[str, int]
    empty: int
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    time_to_first_token: Percentiles | None
    time_per_token: Percentiles | None
    time_between_pieces: Percentiles | None
    whole: Percentiles | None

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second."""
        return self.tokens / self.seconds

    @property
    def requests_per_s(self) -> float:
        """Complete answers per second."""
        return self.answers / self.seconds


@dataclass(frozen=True, kw_only=True)
class Load:
    """A server's answers to concurrent clients.

    Attributes:
        work: the requests.
        seconds: time from the first request to the last answer.
        answers: the complete answers.
        refusals: the other requests by error message.
    """

    work: Work
    seconds: float
    answers: Sequence[RemoteAnswer]
    refusals: Mapping[str, int]

    def __add__(self, other: Load) -> Load:
        """Concatenates two loads, with the work of the first."""
        return Load(
            work=self.work,
            seconds=self.seconds + other.seconds,
            answers=[*self.answers, *other.answers],
            refusals=Counter(self.refusals) + Counter(other.refusals),
        )

    def report(self) -> LoadReport:
        """Returns the report."""
        answers = self.answers
        first = [one.time_to_first_token_s for one in answers]
        mean = [one.time_per_token_s for one in answers]
        return LoadReport(
            work=self.work,
            seconds=self.seconds,
            answers=len(answers),
            refusals=dict(self.refusals),
            finish_reasons=dict(sorted(Counter(one.finish for one in answers).items())),
            empty=sum(not one.text for one in answers),
            prompt_tokens=sum(one.prompt_tokens for one in answers),
            cached_tokens=sum(one.cached_tokens for one in answers),
            tokens=sum(one.answer_tokens for one in answers),
            time_to_first_token=Percentiles.of([time for time in first if time is not None]),
            time_per_token=Percentiles.of([time for time in mean if time is not None]),
            time_between_pieces=Percentiles.of([gap for one in answers for gap in one.gaps_s]),
            whole=Percentiles.of([one.ended_s - one.started_s for one in answers]),
        )


def measure(
    connection: Connection, work: Work, *, on_answer: Callable[[int], object] = lambda _: None
) -> LoadReport:
    """Runs a load test with `gather`; returns its report.

    Raises:
        ServerError: [server-unreachable], [server-refused] if no request was answered.
    """
    return gather(connection, work, on_answer=on_answer).report()


def gather(
    connection: Connection, work: Work, *, on_answer: Callable[[int], object] = lambda _: None
) -> Load:
    """Sends requests from several threads until all are answered or refused.

    Args:
        connection: the server.
        work: the requests.
        on_answer: called with the number of finished requests.

    Raises:
        ServerError: [server-unreachable], [server-refused] if no request was answered.
    """
    model = work.model or connection.models()[0]
    questions = _questions(work)
    answers: list[RemoteAnswer] = []
    refusals: Counter[str] = Counter()
    errors: list[ServerError] = []
    lock = threading.Lock()
    done = itertools.count(1)

    def client() -> None:
        while True:
            with lock:
                question = next(questions, None)
            if question is None:
                return
            text, count = question
            try:
                answer = connection.chat(
                    [{"role": "user", "content": text}],
                    model=model,
                    max_tokens=count,
                    **work.fields,
                )
            except ServerError as error:
                with lock:
                    refusals[str(error)] += 1
                    errors.append(error)
            else:
                with lock:
                    answers.append(answer)
            with lock:
                on_answer(next(done))

    started = time.perf_counter()
    threads = [threading.Thread(target=client, daemon=True) for _ in range(work.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if not answers and errors:
        raise errors[0]
    return Load(work=work, seconds=seconds, answers=answers, refusals=refusals)


def _questions(work: Work) -> itertools.chain[tuple[str, int]]:
    """Returns an iterator of prompts and the lengths of their answers."""
    numbers = random.Random(work.seed)
    made = []
    for _ in range(work.requests):
        words = [numbers.choice(WORDS) for _ in range(numbers.randint(*work.prompt_words))]
        made.append((" ".join(words), numbers.randint(*work.new_tokens)))
    return itertools.chain(made)
