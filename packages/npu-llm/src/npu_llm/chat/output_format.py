"""OutputFormat: how a model marks reasoning and calls, and the tokens of these marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npu_llm.chat.call_grammar import call_grammar, split_special
from npu_llm.chat.call_styles import CallStyle, call_style
from npu_llm.chat.output_parser import OutputParser
from npu_llm.chat.thinking_styles import ThinkingStyle, thinking_style
from npu_llm.structured_output import ConstraintMaker, Form, ThinkingGate, TokenConstraint
from npu_llm.tokenizer.tokenizer import Tokenizer

__all__ = ["OutputFormat"]

_NUM_LAST = 24  # tokens of a prompt in which a mark may open the reasoning


class OutputFormat:
    """The form of a model's answers, found from its chat template and its special tokens.

    Attributes:
        thinking: the style of its reasoning; None if it has none.
        calls: the style of its tool calls; None if its chat template does not describe tools.
        decoder: decodes tokens without special ones, except those that mark reasoning and calls.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special_tokens
        template = tokenizer.chat_template
        self.thinking: ThinkingStyle | None = thinking_style(template, self._special)
        self.calls: CallStyle | None = call_style(template, self._special)
        hidden = self._hidden()
        self._marks = {text: token for text, token in self._special.items() if token not in hidden}
        self.decoder = _MarkDecoder(tokenizer, hidden)

    def is_thinking(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt, (tokens,), has opened the reasoning of its answer."""
        if self.thinking is None:
            return False
        return self.thinking.is_open(self._tokenizer.decode(prompt[-_NUM_LAST:]))

    def parser(
        self,
        prompt: Sequence[int],
        functions: Sequence[Mapping[str, Any]] = (),
        *,
        is_parallel: bool = True,
        is_stream: bool = True,
    ) -> OutputParser:
        """Returns what separates an answer whose tokens `decoder` decodes.

        Args:
            prompt: tokens of the prompt.
            functions: those that may be called; empty to read calls as text.
            is_parallel: whether there may be several calls.
            is_stream: whether calls may begin before they are complete.
        """
        return OutputParser(
            self.thinking,
            self.calls,
            functions,
            is_thinking=self.is_thinking(prompt),
            is_parallel=is_parallel,
            is_stream=is_stream,
        )

    def call_forms(
        self,
        functions: Sequence[Mapping[str, Any]],
        *,
        name: str | None = None,
        is_parallel: bool = False,
    ) -> tuple[Form, Form]:
        """Returns the forms of an answer that has to call functions; takes a second at most.

        Args:
            functions: those that may be called.
            name: the function that has to be called; None for any.
            is_parallel: whether there may be several calls.

        Returns:
            The form of an answer without reasoning, and that of what follows reasoning.

        Raises:
            OptionError: [answer-form], [missing-llguidance].
        """
        assert self.calls is not None, "the caller checks it"
        then = self.thinking.then if self.thinking is not None else ""
        forms = [
            Form.of_grammar(
                call_grammar(
                    self.calls, functions, self._marks, name=name, is_parallel=is_parallel,
                    before=before,
                )
            )
            for before in dict.fromkeys(("", then))
        ]  # fmt: skip
        return forms[0], forms[-1]

    def constraint(
        self,
        maker: ConstraintMaker,
        prompt: Sequence[int],
        forms: tuple[Form, Form] | Form | None,
        *,
        ends: Sequence[int],
        budget: int | None = None,
    ) -> TokenConstraint | None:
        """Returns the constraint of one answer; None if every token may come.

        Args:
            maker: makes constraints for the model.
            prompt: tokens of the prompt.
            forms: the form of the answer, or what `call_forms` returns; None for any.
            ends: tokens that end an answer.
            budget: maximum number of tokens of reasoning; None for no limit.

        Raises:
            OptionError: [answer-form], [missing-llguidance].
        """
        if forms is None and (budget is None or self.thinking is None):
            return None
        direct, after = forms if isinstance(forms, tuple) else (forms, forms)
        if self.thinking is None:
            return None if direct is None else maker.make(direct)
        is_open = self.is_thinking(prompt)
        answer = "" if isinstance(forms, tuple) or forms is None else self.thinking.answer
        return ThinkingGate(
            start=self._tokens(self.thinking.start),
            end=self._tokens(self.thinking.end),
            is_open=is_open,
            ends=ends,
            budget=budget,
            direct=None if direct is None or is_open else maker.make(direct),
            after=None if after is None else maker.make(after),
            bridge=self._tokens(answer),
            must_think=bool(answer),
        )

    def _tokens(self, mark: str) -> list[int]:
        """Returns the tokens of a mark."""
        backend, found = self._tokenizer.backend_tokenizer, []
        for part in split_special(mark, self._special):
            token = self._special.get(part)
            if token is None and backend is not None:
                token = backend.token_to_id(part)
            found += self._tokenizer.encode(part, special=False) if token is None else [token]
        return found

    def _hidden(self) -> frozenset[int]:
        """Returns the special tokens that mark neither reasoning nor calls."""
        styles = [style for style in (self.thinking, self.calls) if style is not None]
        marks = [mark for style in styles for mark in style.marks]
        marks += [style.answer for style in styles if isinstance(style, ThinkingStyle)]
        return frozenset(
            token
            for text, token in self._special.items()
            if not any(text in mark for mark in marks)
        )


class _MarkDecoder:
    """Decodes tokens without some special ones."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        """Returns the text of tokens."""
        return self._tokenizer.decode([one for one in tokens if one not in self._hidden])
