"""ChatSession: a multi-turn conversation that reuses the KV cache, so each token is read once."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from npu_llm.chat.output_format import OutputFormat
from npu_llm.chat.output_parser import Delta
from npu_llm.chat.reply import Draft, Finish, InterruptGuard, Reply, ReplyStream, generated
from npu_llm.engine.engine import Engine, EngineOptions
from npu_llm.engine.kv_store import SequentialStore
from npu_llm.engine.sampler import Token
from npu_llm.engine.sampling_params import to_params
from npu_llm.engine.sequence import Event, Finished, FinishReason
from npu_llm.errors import ContextError, OptionError, SessionError, missing_tokenizer
from npu_llm.structured_output import Form, TokenConstraint, given_form
from npu_llm.tokenizer.detokenizer import Detokenizer
from npu_llm.tokenizer.tokenizer import Message, Tokenizer, tool_schema
from npu_ops.kernel_programs.native import is_torch_loaded
from npu_runtime.errors import KindError
from npu_runtime.public_calls import public_call

if TYPE_CHECKING:
    from npu_llm.generation.entry_model import EntryModel

__all__ = ["ChatSession", "Overflow"]

Overflow = Literal["error", "drop_oldest"]

_OVERFLOWS = ("error", "drop_oldest")
# Room that "drop_oldest" leaves for an answer without max_new_tokens.
_ANSWER_ROOM = 512
_UNBOUNDED = 1 << 20  # maximum length of an answer if the context has no limit
# Options that a session sets itself, or that would require several sequences in its cache.
_OWN_OPTIONS = ("attention_mask", "input_ids", "inputs", "past_key_values", "use_cache")
_SINGLE_OPTIONS = ("num_beams", "num_return_sequences")


class ChatSession:
    """A conversation: its messages, and the KV cache of the tokens that the model has read.

    Each answer prefills only the tokens that are not in the cache: the new message and, after an
    edit or if the chat template renders an earlier message differently, everything after the
    longest unchanged prefix. The answers equal those for the whole conversation.

    A failed answer is discarded. An answer that was stopped by `cancel` or Ctrl-C keeps the text
    generated so far. One thread at a time may request an answer; others may stop it.

    Attributes:
        last_reply: the last answer; None before the first one.
    """

    @public_call
    def __init__(
        self,
        model: EntryModel,
        system: str | None = None,
        *,
        tools: Sequence[Any] | None = None,
        template_options: Mapping[str, Any] | None = None,
        overflow: Overflow = "error",
        **generation: Any,
    ) -> None:
        """Starts a conversation.

        Args:
            model: the model, which must have a tokenizer.
            system: the system message.
            tools: functions or JSON schemas for the chat template.
            template_options: other options of the chat template, such as `{"enable_thinking":
                False}`.
            overflow: action when the conversation exceeds the model's context: "error", or
                "drop_oldest" to drop the oldest turns, except the system message.
            generation: default arguments of `generate` and of npu_llm.engine.sampling_params for
                each answer. Without max_new_tokens an answer ends with the context.
                `thinking_budget` is the maximum number of reasoning tokens. Arguments that only
                transformers supports, such as logits processors, are passed to its `generate`.

        Raises:
            ModelError: [missing-tokenizer] for a model without a tokenizer.
            OptionError: [overflow-policy] for an unknown overflow, [session-option] for an option
                that a session sets itself.
        """
        if overflow not in _OVERFLOWS:
            raise OptionError(
                f"`overflow` must be one of {', '.join(_OVERFLOWS)}, got {overflow!r}. Omit it "
                "for an error.",
                code="overflow-policy",
            )
        _check_options(generation)
        if not model.has_tokenizer:
            raise missing_tokenizer(model.name)
        self.last_reply: Reply | None = None
        self._model = model
        options = EngineOptions(max_num_batched_tokens=None, is_sequential=True)
        self._engine = Engine(model, options)
        self._tools = tools
        self._template_options = dict(template_options or {})
        self._overflow = overflow
        self._generation = generation
        self._messages: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.system = system

    # The conversation

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Copies of the messages, oldest first, each with role and content."""
        return [dict(message) for message in self._messages]

    @property
    def system(self) -> str | None:
        """The system message, or None. Setting it changes the start of the conversation."""
        return self._messages[0]["content"] if self._first_turn() else None

    @system.setter
    def system(self, text: str | None) -> None:
        with self._claimed():
            rest = self._messages[self._first_turn() :]
            self._messages = ([{"role": "system", "content": text}] if text else []) + rest

    @property
    def cached_tokens(self) -> int:
        """Number of tokens in the cache, which need no prefill."""
        return len(self._store.cached_tokens)

    @property
    def model(self) -> EntryModel:
        """The model that answers."""
        return self._model

    def append(self, message: str | Message) -> None:
        """Adds a message before the next question: a user message, or a mapping with another role.

        Raises:
            OptionError: [message-kind] for anything but a string or a mapping with a role.
        """
        with self._claimed():
            self._messages.append(_as_message(message))

    @public_call
    def edit(self, index: int, text: str) -> None:
        """Changes a message's content; all other messages stay.

        Args:
            index: index into `messages`; negative ones count from the end.
            text: its new content.

        Raises:
            OptionError: [message-index] if there is no such message.
        """
        with self._claimed():
            index = self._index(index)
            self._messages[index] = {**self._messages[index], "content": text}

    @public_call
    def rewind(self, index: int) -> None:
        """Removes a message and all later messages.

        Raises:
            OptionError: [message-index] if there is no such message.
        """
        with self._claimed():
            del self._messages[self._index(index) :]

    def undo(self) -> str | None:
        """Removes the last question and its answer.

        Returns:
            The question; None if there is none.
        """
        with self._claimed():
            for index in reversed(range(len(self._messages))):
                if self._messages[index]["role"] == "user":
                    text: str = self._messages[index]["content"]
                    del self._messages[index:]
                    return text
            return None

    def reset(self) -> None:
        """Removes all messages except the system message."""
        with self._claimed():
            del self._messages[self._first_turn() :]

    # Answers

    def ask(
        self,
        message: str | Message,
        *,
        streamer: Any | None = None,
        cancel: threading.Event | None = None,
        **generation: Any,
    ) -> Reply:
        """Answers a message.

        Args:
            message: the user's message, or a mapping with role and content.
            streamer: a streamer of transformers, which receives each token.
            cancel: event that stops the answer after the current step; may be set by any thread.
            generation: arguments of `generate` for this answer, including `schema`, `regex` or
                `grammar` for structured output.

        Returns:
            The answer. If it is stopped before its first token, the question is removed too.

        Raises:
            ContextError: [context-overflow] if the conversation does not fit into the model's
                context; with overflow="drop_oldest", if this message alone does not fit.
            OptionError: [message-kind], [session-option], [chat-template], or an error of generate.
            KindError: [argument-kind] for an invalid type of streamer or cancel.
            SessionError: [session-busy] during another thread's call.
            KeyboardInterrupt: after Ctrl-C. As after a cancel, the text so far is in `last_reply`
                and in the conversation.
        """
        question = _as_message(message)
        _check_listeners(streamer, cancel)
        replies: list[Reply] = []
        with InterruptGuard(self._stop) as guard:
            for _ in self._answer(question, streamer, cancel, generation, replies):
                pass
        if guard.was_interrupted:
            raise KeyboardInterrupt
        return replies[0]

    def stream(
        self,
        message: str | Message,
        *,
        cancel: threading.Event | None = None,
        **generation: Any,
    ) -> ReplyStream:
        """Streams the answer to a message: an iterator of strings with the whole answer in `reply`.

        Arguments and errors are those of `ask`. Generation starts with the first `next`; leaving
        the loop early stops it.
        """
        question = _as_message(message)
        _check_listeners(None, cancel)
        replies: list[Reply] = []
        pieces = self._answer(question, None, cancel, generation, replies)
        return ReplyStream(pieces, replies, self._stop)

    def cancel(self) -> None:
        """Stops the current answer, if there is one; called from another thread."""
        self._stop.set()

    # Saving

    @public_call
    def save(self, path: str | Path) -> None:
        """Saves the session to one file, atomically.

        The file contains the messages, the tokens that were read, and the cache if it can be
        copied. Otherwise `restore` reads the tokens again. Tools and options are not saved.

        Raises:
            SessionError: [session-unwritable], [session-busy].
        """
        from npu_llm.chat.session_file import ModelIdentity, SavedSession, write_session

        with self._claimed():
            saved = SavedSession(
                messages=self._messages,
                model=ModelIdentity.of(self._model),
                tokens=self._store.cached_tokens,
                cache=self._store.tensors(),
            )
            write_session(Path(path).absolute(), saved)

    @classmethod
    @public_call
    def restore(cls, model: EntryModel, path: str | Path, **options: Any) -> ChatSession:
        """Loads a file from `save`, and continues the conversation.

        Args:
            model: the same model as in the saved session, in the same precision.
            path: the file.
            options: keyword arguments of ChatSession.

        Raises:
            SessionError: [session-unreadable] for a file that is missing, damaged or not a session,
                [session-model] for a session with another model or precision.
        """
        from npu_llm.chat.session_file import ModelIdentity, read_session

        saved = read_session(Path(path), ModelIdentity.of(model))
        session = cls(model, **options)
        session._messages = [dict(message) for message in saved.messages]
        session._store.restore(saved.tokens, saved.cache)
        return session

    # Inside

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._model.text_tokenizer

    @property
    def _store(self) -> SequentialStore:
        store = self._engine.store
        assert isinstance(store, SequentialStore), "the options ask for one"
        return store

    def _answer(
        self,
        message: dict[str, Any],
        streamer: Any | None,
        cancel: threading.Event | None,
        generation: Mapping[str, Any],
        replies: list[Reply],
    ) -> Generator[Delta, None, None]:
        """Yields the pieces of an answer to a message, and adds the whole answer to `replies`."""
        draft = Draft(Detokenizer(self._format.decoder))
        interrupt: BaseException | None = None
        with self._claimed():
            self._stop.clear()
            before = list(self._messages)
            self._messages.append(message)
            try:
                options = self._options(generation)
                draft.prompt, draft.dropped = self._prompt(options.get("max_new_tokens"))
                if options.get("max_new_tokens") is None:
                    context = self._model.context_length
                    room = _UNBOUNDED if context is None else context - len(draft.prompt)
                    options["max_new_tokens"] = room
                events, draft.text = self._start(draft.prompt, options)
                draft.parser = parser = self._format.parser(
                    draft.prompt, self._functions, is_stream=False
                )
                with closing(events):
                    if streamer is not None:
                        import torch  # imported late, also below: seldom needed

                        streamer.put(torch.tensor([draft.prompt]))
                    for event in events:
                        if isinstance(event, Finished):
                            draft.finish = _finish(event)
                            break
                        piece = draft.add(event)
                        if streamer is not None:
                            import torch

                            streamer.put(torch.tensor([event.id]))
                        yield from parser.take(piece)
                        if draft.ends(self._stop, cancel):
                            break
                yield from parser.take(draft.text.end())
                yield from parser.end()
                if streamer is not None:
                    streamer.end()
            except (KeyboardInterrupt, GeneratorExit) as raised:
                # Ctrl-C outside the guard or a second time, or a loop that was left early.
                interrupt, draft.finish = raised, "cancelled"
                if draft.parser is not None:
                    draft.parser.take(draft.text.end())
                    draft.parser.end()
            except BaseException:
                self._messages = before
                raise
            reply = self._reply(draft)
            if reply.tokens:
                self._messages.append(_spoken(reply))
            else:
                self._messages = before
            self.last_reply = reply
            replies.append(reply)
        if interrupt is not None:
            raise interrupt

    def _reply(self, draft: Draft) -> Reply:
        return draft.reply(
            prefilled=len(draft.prompt) - self._store.num_reused,
            verification=str(self._model.verification),
        )

    @cached_property
    def _format(self) -> OutputFormat:
        return OutputFormat(self._tokenizer)

    @cached_property
    def _functions(self) -> list[dict[str, Any]]:
        """The session's tools, with a name and optionally `parameters`."""
        schemas = [tool_schema(tool) for tool in self._tools or ()]
        return [dict(schema.get("function", schema)) for schema in schemas]

    def _options(self, generation: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of generate for one answer."""
        _check_options(generation)
        options = {**self._generation, **generation}
        if options.get("max_new_tokens") is None:
            options["max_new_tokens"] = self._config(options).get("max_new_tokens")
        return options

    def _config(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the generation config with the arguments of generate applied."""
        given: Any = options.get("generation_config")
        found: Mapping[str, Any] = (
            self._model.generation_defaults if given is None else given.to_diff_dict()
        )
        return found

    def _start(
        self, prompt: list[int], options: Mapping[str, Any]
    ) -> tuple[Generator[Event, None, None], Detokenizer]:
        """Returns the events of an answer, and the decoder of its tokens."""
        plain = dict(options)
        form = given_form(plain)
        budget = plain.pop("thinking_budget", None)
        params = to_params({**self._model.generation_defaults, **plain})
        decoder = self._format.decoder
        if params is None and budget is not None:
            raise _own_option("thinking_budget with arguments that only transformers supports")
        if params is None:
            return self._by_transformers(prompt, options), Detokenizer(decoder)
        if params.seed is None and params.temperature:
            params = replace(params, seed=_new_seed())
        constraint = self._constraint(prompt, form, budget)
        text = Detokenizer(decoder, params.stop, includes_stop=True)
        return self._engine.generate(prompt, params, constraint=constraint), text

    def _constraint(
        self, prompt: list[int], form: Form | None, budget: int | None
    ) -> TokenConstraint | None:
        if form is None and budget is None:
            return None
        ends = sorted(self._model.end_tokens)
        maker = self._model.constraints
        return self._format.constraint(maker, prompt, form, ends=ends, budget=budget)

    def _by_transformers(
        self, prompt: list[int], options: Mapping[str, Any]
    ) -> Generator[Event, None, None]:
        """Yields the tokens of transformers' generate, which runs in another thread."""
        import torch

        cache = self._store.lend(prompt)
        tokens: list[int] = []
        ids = torch.tensor([prompt])
        model: Any = self._model
        arguments = {"pad_token_id": self._tokenizer.pad_token_id, **options}
        if (seed := arguments.pop("seed", None)) is not None:
            torch.manual_seed(seed)
        if options.get("stop_strings") is not None:
            arguments["tokenizer"] = model.tokenizer
        found = generated(
            model.generate, input_ids=ids, attention_mask=torch.ones_like(ids),
            past_key_values=cache, **arguments,
        )  # fmt: skip
        try:
            with closing(found):
                for token in found:
                    tokens.append(token)
                    yield Token(token)
        finally:
            # The last token is not in the cache; a rejected draft token may be in its place.
            self._store.give_back([*prompt, *tokens[:-1]])
        yield Finished(self._reason(len(prompt), tokens, options))

    def _prompt(self, max_new_tokens: int | None) -> tuple[list[int], int]:
        """Returns the conversation's tokens, and the number of messages dropped to make it fit."""
        context = self._model.context_length
        room = context or 0
        if self._overflow == "drop_oldest":
            room -= min(max_new_tokens or _ANSWER_ROOM, room // 2)
        dropped = 0
        while True:
            prompt = self._tokenizer.encode_chat(
                self._messages, tools=self._tools, template_options=self._template_options
            )
            if context is None or len(prompt) < room:
                return prompt, dropped
            oldest = self._oldest_turn() if self._overflow == "drop_oldest" else range(0)
            if not oldest and len(prompt) < context:
                return prompt, dropped
            if not oldest:
                raise ContextError(
                    f"{self._model.name}: its context holds {context:,} tokens; the conversation "
                    f"with this message has {len(prompt):,}. Shorten it, remove earlier messages, "
                    'or pass overflow="drop_oldest".',
                    code="context-overflow",
                )
            del self._messages[oldest.start : oldest.stop]
            dropped += len(oldest)

    def _oldest_turn(self) -> range:
        """Returns the indices of the oldest turn; empty if only the current question is left."""
        first = self._first_turn()
        for index in range(first + 1, len(self._messages)):
            if self._messages[index]["role"] == "user":
                return range(first, index)
        return range(0)

    def _reason(
        self, num_prompt: int, tokens: Sequence[int], options: Mapping[str, Any]
    ) -> FinishReason:
        ends = options.get("eos_token_id", self._config(options).get("eos_token_id"))
        ends = {ends} if isinstance(ends, int) else set(ends or ())
        if tokens and tokens[-1] in ends:
            return "stop"
        context = self._model.context_length
        is_full = context is not None and num_prompt + len(tokens) >= context
        return "length" if is_full or len(tokens) >= options["max_new_tokens"] else "stop"

    def _first_turn(self) -> int:
        """Returns the index of the first message that is not the system message."""
        return int(bool(self._messages) and self._messages[0]["role"] == "system")

    def _index(self, index: int) -> int:
        count = len(self._messages)
        if not -count <= index < count:
            raise OptionError(
                f"`index` must be the index of one of the {count} messages, got {index}. "
                "`messages` lists them.",
                code="message-index",
            )
        return index % count

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Blocks other threads' calls while the body runs."""
        if not self._lock.acquire(blocking=False):
            raise SessionError(
                "`ChatSession` must be used by one thread at a time, got a call during an "
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
        f"`message` must be a string, or a mapping with a role and its content, got {message!r}. "
        'Pass {"role": "tool", "content": "..."}, for example.',
        code="message-kind",
    )


def _new_seed() -> int:
    """Returns a seed that follows torch.manual_seed; without torch, random.seed."""
    if not is_torch_loaded():
        return random.getrandbits(62)
    import torch

    return int(torch.randint(1 << 62, ()))


def _finish(end: Finished) -> Finish:
    """Returns the reason that an answer ended; raises the failure if there was one."""
    if end.error is not None:
        raise end.error
    assert end.reason != "error", "it has an error"
    return end.reason


def _spoken(reply: Reply) -> dict[str, Any]:
    """Returns an answer as a message for chat templates."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in reply.tool_calls
        ]
    return message


def _check_listeners(streamer: Any | None, cancel: threading.Event | None) -> None:
    """Checks the methods of a streamer and an event, which may be of any class."""
    for name, given, methods in (
        ("streamer", streamer, ("put", "end")),
        ("cancel", cancel, ("is_set",)),
    ):
        if given is not None and not all(callable(getattr(given, one, None)) for one in methods):
            raise KindError(
                f"ChatSession: `{name}` must have {' and '.join(methods)}, got a "
                f"{type(given).__name__}. Omit it, or pass an object with them.",
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
        "`ChatSession` must return one sequence, based on its own messages and cache, got "
        f"{received}. Omit it, or call the model's generate.",
        code="session-option",
    )
