"""ChatSession: a conversation with a model that reads each token once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers.generation.streamers import BaseStreamer

from npu_llm.chat.answer_streamer import AnswerRecorder, AnswerText
from npu_llm.chat.read_tokens import ReadTokens
from npu_llm.chat.reply import Finish, Reply, ReplyStream
from npu_llm.chat.session_file import ModelIdentity, SavedSession, read_session, write_session
from npu_llm.chat.stop_request import InterruptGuard, StopWhenSet
from npu_llm.errors import ContextError, OptionError, SessionError, missing_tokenizer
from npu_llm.prompts.chat_prompt import Message, encode_chat
from npu_runtime.errors import KindError
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from npu_llm.generation.model import NPUModelForCausalLM

__all__ = ["ChatSession", "Overflow"]

Overflow = Literal["error", "drop_oldest"]

_OVERFLOWS = ("error", "drop_oldest")
_DEFAULT_NEW_TOKENS = 512
# Options that a session sets itself, and those that would give its cache several sequences.
_OWN_OPTIONS = ("attention_mask", "input_ids", "inputs", "past_key_values", "use_cache")
_SINGLE_OPTIONS = ("num_beams", "num_return_sequences")


class ChatSession:
    """A conversation: its messages, and the cache of what the model has read of them.

    Each answer reads only the tokens that the cache does not hold: the new message and, after an
    edit or where the chat template renders an earlier message differently, everything behind the
    longest prefix that is unchanged. The answers are those that the model gives to the whole
    conversation.

    An answer is kept whole or not at all, unless it was stopped by `cancel` or Ctrl-C: then what
    was generated stays. One thread at a time may ask; others may stop it.

    Attributes:
        last_reply: the last answer; None before the first.
    """

    @public_call
    def __init__(
        self,
        model: NPUModelForCausalLM,
        system: str | None = None,
        *,
        tools: Sequence[Any] | None = None,
        template_options: Mapping[str, Any] | None = None,
        overflow: Overflow = "error",
        **generation: Any,
    ) -> None:
        """Starts a conversation.

        Args:
            model: the model that answers; it needs its tokenizer.
            system: the system message.
            tools: functions or JSON schemas that the chat template describes to the model.
            template_options: options of the chat template, such as `{"enable_thinking": False}`.
            overflow: what to do when the conversation outgrows the model's context: "error", or
                "drop_oldest" to drop the oldest turns, but not the system message.
            generation: default arguments of `generate` for each answer. Without max_new_tokens an
                answer ends after 512 tokens.

        Raises:
            ModelError: [missing-tokenizer] for a model without one.
            OptionError: [overflow-policy] for an unknown overflow, [session-option] for an option
                that a session sets itself.
        """
        if model.tokenizer is None:
            raise missing_tokenizer(model.name)
        if overflow not in _OVERFLOWS:
            raise OptionError(
                f"overflow: must be one of {', '.join(_OVERFLOWS)}; got {overflow!r}. Omit it "
                "for an error.",
                code="overflow-policy",
            )
        _check_options(generation)
        self.last_reply: Reply | None = None
        self._model = model
        self._tokenizer: Any = model.tokenizer
        self._tools = tools
        self._template_options = dict(template_options or {})
        self._overflow = overflow
        self._generation = generation
        self._messages: list[dict[str, Any]] = []
        self._read = ReadTokens(model)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.system = system

    # The conversation

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Copies of the messages with role and content, oldest first."""
        return [dict(message) for message in self._messages]

    @property
    def system(self) -> str | None:
        """The system message, or None. Setting it changes the conversation's start."""
        return self._messages[0]["content"] if self._first_turn() else None

    @system.setter
    def system(self, text: str | None) -> None:
        with self._claimed():
            rest = self._messages[self._first_turn() :]
            self._messages = ([{"role": "system", "content": text}] if text else []) + rest

    @property
    def cached_tokens(self) -> int:
        """How many tokens the model has read and does not have to read again."""
        return len(self._read.tokens)

    def append(self, message: str | Message) -> None:
        """Adds a message before the next question: the user's, or a mapping with another role.

        Raises:
            OptionError: [message-kind] for anything but a string or a mapping with a role.
        """
        with self._claimed():
            self._messages.append(_as_message(message))

    @public_call
    def edit(self, index: int, text: str) -> None:
        """Changes a message's content; all other messages stay.

        Args:
            index: of `messages`; negative ones count from the end.
            text: its new content.

        Raises:
            OptionError: [message-index] when there is no such message.
        """
        with self._claimed():
            index = self._index(index)
            self._messages[index] = {**self._messages[index], "content": text}

    @public_call
    def rewind(self, index: int) -> None:
        """Forgets a message and all messages after it.

        Raises:
            OptionError: [message-index] when there is no such message.
        """
        with self._claimed():
            del self._messages[self._index(index) :]

    def undo(self) -> str | None:
        """Forgets the last question and its answer.

        Returns:
            The question; None when there is none.
        """
        with self._claimed():
            for index in reversed(range(len(self._messages))):
                if self._messages[index]["role"] == "user":
                    text: str = self._messages[index]["content"]
                    del self._messages[index:]
                    return text
            return None

    def reset(self) -> None:
        """Forgets all messages except the system message."""
        with self._claimed():
            del self._messages[self._first_turn() :]

    # Answers

    def ask(
        self,
        message: str | Message,
        *,
        streamer: BaseStreamer | None = None,
        cancel: threading.Event | None = None,
        **generation: Any,
    ) -> Reply:
        """Answers a message.

        Args:
            message: what the user says, or a mapping with role and content.
            streamer: a streamer of transformers, which receives the tokens as they come.
            cancel: setting it, from any thread, stops the answer after the current step.
            generation: arguments of `generate` for this answer, among them `schema`, `regex` or
                `grammar` to hold it to a form.

        Returns:
            The answer. If it was stopped before its first token, the question is dropped as well.

        Raises:
            ContextError: [context-overflow] when the conversation does not fit into the model's
                context; with overflow="drop_oldest", when this message alone does not.
            OptionError: [message-kind], [session-option], [chat-template], or as generate does.
            KindError: [argument-kind] for a streamer or a cancel of another type.
            SessionError: [session-busy] while another thread asks.
            KeyboardInterrupt: after Ctrl-C. What was generated is in `last_reply` and in the
                conversation, as after a cancel.
        """
        _check_listeners(streamer, cancel)
        events = () if cancel is None else (cancel,)
        return self._ask(_as_message(message), streamer, events, generation)

    def stream(
        self,
        message: str | Message,
        *,
        cancel: threading.Event | None = None,
        **generation: Any,
    ) -> ReplyStream:
        """Answers a message piece by piece: an iterator of strings, whose `reply` is the whole.

        Takes and raises what `ask` does. The answer starts with the first `next`; leaving the loop
        early stops it.
        """
        question = _as_message(message)
        _check_listeners(None, cancel)
        given = () if cancel is None else (cancel,)

        def answer(on_text: Any, stop: threading.Event) -> Reply:
            text = AnswerText(self._tokenizer, on_text)
            return self._ask(question, text, (*given, stop), generation)

        return ReplyStream(answer)

    def cancel(self) -> None:
        """Stops the current answer, if there is one; to be called from another thread."""
        self._stop.set()

    # Saving

    @public_call
    def save(self, path: str | Path) -> None:
        """Writes the session to one file, whole or not at all.

        The file holds the messages, the tokens that were read, and the cache where it can be
        copied. Where the cache cannot be taken out of its program, `restore` reads the tokens
        again. Tools and options are not saved.

        Raises:
            SessionError: [session-unwritable], [session-busy].
        """
        with self._claimed():
            saved = SavedSession(
                messages=self._messages,
                model=ModelIdentity.of(self._model),
                tokens=self._read.tokens,
                cache=self._read.tensors(),
            )
            write_session(Path(path).absolute(), saved)

    @classmethod
    @public_call
    def restore(cls, model: NPUModelForCausalLM, path: str | Path, **options: Any) -> ChatSession:
        """Reads what `save` wrote, and continues the conversation where it was.

        Args:
            model: the model that the session was held with, in the same precision.
            path: the file.
            options: keyword arguments of ChatSession.

        Raises:
            SessionError: [session-unreadable] for a file that is missing, damaged or of another
                kind, [session-model] for a session with another model or precision.
        """
        saved = read_session(Path(path), ModelIdentity.of(model))
        session = cls(model, **options)
        session._messages = [dict(message) for message in saved.messages]
        session._read.restore(saved.tokens, saved.cache)
        return session

    # Inside

    def _ask(
        self,
        message: dict[str, Any],
        streamer: BaseStreamer | None,
        cancel: Sequence[threading.Event],
        generation: Mapping[str, Any],
    ) -> Reply:
        recorder = AnswerRecorder(streamer)
        with self._claimed():
            options = self._options(generation)
            before = list(self._messages)
            self._messages.append(message)
            reply = None
            self._stop.clear()
            with InterruptGuard(self._stop) as guard:
                try:
                    reply = self._answer(recorder, StopWhenSet(self._stop, *cancel), guard, options)
                finally:
                    if reply is None or not reply.tokens:
                        self._messages = before
                if reply.tokens:
                    self._messages.append({"role": "assistant", "content": reply.text})
                self.last_reply = reply
        if guard.was_interrupted:
            raise KeyboardInterrupt
        return reply

    def _answer(
        self,
        recorder: AnswerRecorder,
        stop: StopWhenSet,
        guard: InterruptGuard,
        options: dict[str, Any],
    ) -> Reply:
        """Answers the messages as they are."""
        prompt, dropped = self._prompt(options["max_new_tokens"])
        cache, reused = self._read.prepare(prompt)
        tokens = torch.tensor([prompt])
        try:
            self._model.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                past_key_values=cache,
                streamer=recorder,
                **{**options, "stopping_criteria": [*options["stopping_criteria"], stop]},
            )
        except KeyboardInterrupt:
            # Not the guard's: a second Ctrl-C, or a handler that is not ours.
            guard.was_interrupted = True
        finally:
            self._read.settle(prompt, recorder.tokens)
        is_stopped = stop.has_stopped or guard.was_interrupted
        return Reply(
            text=self._decode(recorder.tokens),
            tokens=tuple(recorder.tokens),
            prompt_tokens=len(prompt),
            prefilled_tokens=len(prompt) - reused,
            time_to_first_token_s=recorder.time_to_first_token_s,
            tokens_per_s=recorder.tokens_per_s,
            finish="cancelled" if is_stopped else self._finish(len(prompt), recorder, options),
            dropped_messages=dropped,
            verification=str(self._model.verification),
        )

    def _options(self, generation: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of generate for one answer."""
        _check_options(generation)
        options = {**self._generation, **generation}
        config = options.get("generation_config") or self._model.generation_config
        if options.get("max_new_tokens") is None:
            options["max_new_tokens"] = config.max_new_tokens or _DEFAULT_NEW_TOKENS
        if options.get("pad_token_id") is None and config.pad_token_id is None:
            options["pad_token_id"] = self._tokenizer.pad_token_id
        if options.get("stop_strings") is not None:
            options["tokenizer"] = self._tokenizer
        options["stopping_criteria"] = list(options.get("stopping_criteria") or ())
        return options

    def _prompt(self, max_new_tokens: int) -> tuple[list[int], int]:
        """Returns the conversation's tokens, and how many messages were dropped to make it fit."""
        context = self._model.context_length
        room = context or 0
        if self._overflow == "drop_oldest":
            room -= min(max_new_tokens, room // 2)
        dropped = 0
        while True:
            inputs = encode_chat(
                self._tokenizer,
                self._messages,
                tools=self._tools,
                template_options=self._template_options,
            )
            prompt: list[int] = inputs["input_ids"][0].tolist()
            if context is None or len(prompt) < room:
                return prompt, dropped
            oldest = self._oldest_turn() if self._overflow == "drop_oldest" else range(0)
            if not oldest and len(prompt) < context:
                return prompt, dropped
            if not oldest:
                raise ContextError(
                    f"{self._model.name}: its context holds {context:,} tokens; the conversation "
                    f"with this message has {len(prompt):,}. Shorten it, forget earlier "
                    'messages, or have them dropped with overflow="drop_oldest".',
                    code="context-overflow",
                )
            del self._messages[oldest.start : oldest.stop]
            dropped += len(oldest)

    def _oldest_turn(self) -> range:
        """Indices of the oldest question and what followed it; empty for the current question."""
        first = self._first_turn()
        for index in range(first + 1, len(self._messages)):
            if self._messages[index]["role"] == "user":
                return range(first, index)
        return range(0)

    def _finish(self, prompt: int, answer: AnswerRecorder, options: Mapping[str, Any]) -> Finish:
        config = options.get("generation_config") or self._model.generation_config
        ends = options.get("eos_token_id", config.eos_token_id)
        ends = {ends} if isinstance(ends, int) else set(ends or ())
        if answer.tokens[-1] in ends:
            return "stop"
        context = self._model.context_length
        is_full = context is not None and prompt + len(answer.tokens) >= context
        return "length" if is_full or len(answer.tokens) >= options["max_new_tokens"] else "stop"

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _first_turn(self) -> int:
        """Index of the first message that is not the system message."""
        return int(bool(self._messages) and self._messages[0]["role"] == "system")

    def _index(self, index: int) -> int:
        count = len(self._messages)
        if not -count <= index < count:
            raise OptionError(
                f"index: must be the index of one of the {count} messages; got {index}. "
                "`messages` lists them.",
                code="message-index",
            )
        return index % count

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Keeps other threads out while the body runs."""
        if not self._lock.acquire(blocking=False):
            raise SessionError(
                "ChatSession: must be used by one thread at a time; got a call during an "
                "answer. Wait for the answer, or stop it with cancel().",
                code="session-busy",
            )
        try:
            yield
        finally:
            self._lock.release()


def _as_message(message: str | Message) -> dict[str, Any]:
    if isinstance(message, str):
        return {"role": "user", "content": message}
    if isinstance(message, Mapping) and isinstance(message.get("role"), str):
        return dict(message)
    raise OptionError(
        f"message: must be a string, or a mapping with a role and its content; got {message!r}. "
        'Pass {"role": "tool", "content": "..."}, for example.',
        code="message-kind",
    )


def _check_listeners(streamer: BaseStreamer | None, cancel: threading.Event | None) -> None:
    """Accepts whatever has the methods of a streamer or an event."""
    for name, given, methods in (
        ("streamer", streamer, ("put", "end")),
        ("cancel", cancel, ("is_set",)),
    ):
        if given is not None and not all(callable(getattr(given, one, None)) for one in methods):
            raise KindError(
                f"ChatSession: {name} must have {' and '.join(methods)}; got a "
                f"{type(given).__name__}. Omit it, or pass one.",
                code="argument-kind",
            )


def _check_options(options: Mapping[str, Any]) -> None:
    for name in _OWN_OPTIONS:
        if name in options:
            raise _own_option(f"{name}={type(options[name]).__name__}")
    for name in _SINGLE_OPTIONS:
        if options.get(name) not in (None, 1):
            raise _own_option(f"{name}={options[name]}")


def _own_option(received: str) -> OptionError:
    return OptionError(
        "ChatSession: must answer with one sequence, from the messages and the cache that it "
        f"keeps; got {received}. Omit it, or call the model's generate.",
        code="session-option",
    )
