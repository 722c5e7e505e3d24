"""Asks a server many questions from several clients, and measures how it answers."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from npu_llm.errors import ServerError
from npu_llm.serving.client.connection import Connection, RemoteAnswer

__all__ = ["WORDS", "LoadReport", "Spread", "Work", "measure"]

# Of which questions are made.
WORDS = [
    "river",
    "stone",
    "light",
    "morning",
    "quiet",
    "garden",
    "letter",
    "travel",
    "winter",
    "copper",
    "music",
    "window",
    "bread",
    "market",
    "silver",
    "forest",
    "paper",
    "engine",
    "harbor",
    "sudden",
    "gentle",
    "broken",
    "yellow",
    "northern",
    "careful",
    "distant",
]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is asked.

    Attributes:
        clients: how many ask at once.
        requests: how many questions there are.
        prompt_words: fewest and most words of a question; a word is about a token.
        new_tokens: fewest and most tokens of an answer.
        model: the model's name; None for the server's first.
        seed: chooses lengths and words.
    """

    clients: int
    requests: int
    prompt_words: tuple[int, int] = (32, 800)
    new_tokens: tuple[int, int] = (16, 200)
    model: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class Spread:
    """Percentiles of some times, in seconds."""

    p50_s: float
    p95_s: float
    p99_s: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread | None:
        """Returns the percentiles, each a time that was measured; None without times."""
        if not times:
            return None
        ordered = sorted(times)

        def at(share: float) -> float:
            return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

        return cls(at(0.5), at(0.95), at(0.99))


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """How a server answered.

    Attributes:
        work: what was asked.
        seconds: from the first question to the last answer.
        answers: how many were complete.
        refusals: how many were not, by what was said.
        prompt_tokens, cached_tokens, tokens: of all complete answers.
        time_to_first_token, time_per_token, whole: of those.
    """

    work: Work
    seconds: float
    answers: int
    refusals: dict[str, int]
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    time_to_first_token: Spread | None
    time_per_token: Spread | None
    whole: Spread | None

    @property
    def tokens_per_s(self) -> float:
        """Tokens of answers for each second."""
        return self.tokens / self.seconds

    @property
    def requests_per_s(self) -> float:
        """Complete answers for each second."""
        return self.answers / self.seconds


def measure(
    connection: Connection, work: Work, *, on_answer: Callable[[int], object] = lambda _: None
) -> LoadReport:
    """Asks from several threads until all questions are answered or refused.

    Args:
        connection: the server.
        work: what to ask.
        on_answer: called with how many are done.

    Raises:
        ServerError: [server-unreachable], [server-refused] if no question was answered.
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
                    [{"role": "user", "content": text}], model=model, max_tokens=count
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
    first = [one.time_to_first_token_s for one in answers]
    between = [one.time_per_token_s for one in answers]
    return LoadReport(
        work=work,
        seconds=seconds,
        answers=len(answers),
        refusals=dict(refusals),
        prompt_tokens=sum(one.prompt_tokens for one in answers),
        cached_tokens=sum(one.cached_tokens for one in answers),
        tokens=sum(one.tokens for one in answers),
        time_to_first_token=Spread.of([time for time in first if time is not None]),
        time_per_token=Spread.of([time for time in between if time is not None]),
        whole=Spread.of([one.ended_s - one.started_s for one in answers]),
    )


def _questions(work: Work) -> itertools.chain[tuple[str, int]]:
    """Returns an iterator of questions and the lengths of their answers."""
    numbers = random.Random(work.seed)
    made = []
    for _ in range(work.requests):
        words = [numbers.choice(WORDS) for _ in range(numbers.randint(*work.prompt_words))]
        made.append((" ".join(words), numbers.randint(*work.new_tokens)))
    return itertools.chain(made)
