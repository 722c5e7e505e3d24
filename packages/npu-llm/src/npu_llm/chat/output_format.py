"""OutputFormat: the marks of reasoning and tool calls in a model's output, and their tokens."""

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

_NUM_LAST = 24  # prompt tokens in which a mark may open the reasoning


class OutputFormat:
    """The format of a model's answers, derived from its chat template and special tokens.

    Attributes:
        thinking: the style of its reasoning; None without reasoning.
        calls: the style of its tool calls; None if its chat template does not describe tools.
        decoder: decodes tokens, skipping special ones except marks of reasoning and calls.
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
        """Returns a parser for an answer with tokens that `decoder` decodes.

        Args:
            prompt: tokens of the prompt.
            functions: the available functions; empty to parse calls as text.
            is_parallel: whether several calls are allowed.
            is_stream: whether calls are passed on before they are complete.
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
        """Returns the grammars of an answer that must call functions; takes up to a second.

        Args:
            functions: the available functions.
            name: the function that must be called; None for any function.
            is_parallel: whether several calls are allowed.

        Returns:
            The grammar of an answer without reasoning, and that of the part after reasoning.

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
        """Returns the constraint of one answer; None if it is unconstrained.

        Args:
            maker: creates constraints for the model.
            prompt: tokens of the prompt.
            forms: the form of the answer, or the result of `call_forms`; None for any.
            ends: tokens that end an answer.
            budget: maximum number of reasoning tokens; None for no limit.

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
    """A decoder that skips some special tokens."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        """Returns the text of tokens."""
        return self._tokenizer.decode([one for one in tokens if one not in self._hidden])
