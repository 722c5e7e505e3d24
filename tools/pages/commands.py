"""Writes docs/reference/commands: a page for each subcommand, made from its parser.

    python tools/pages/commands.py

Runs in an environment with the five wheels. tests/test_command_pages.py compares the pages with the
parsers.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from npu_command.command_parser import COMPLETION_SUMMARY, HELP_SUMMARY, parser_of
from npu_command.subcommands import Command, read_command

__all__ = ["FOLDER", "main", "pages"]

FOLDER = Path(__file__).parents[2] / "docs/reference/commands"
PACKAGES = ("npu_llm", "npu_compiler", "npu_ops", "npu_runtime", "npu_profiler")
# The guide of a command, with the words of its link.
GUIDES = {
    "npu-compiler cache": ("concepts/compile-cache", "The compile cache"),
    "npu-compiler check": ("guides/check-for-an-npu", "Check a model for an NPU"),
    "npu-compiler explain": ("guides/compile", "Compile a model"),
    "npu-compiler export": ("guides/export", "Export a model"),
    "npu-compiler show": ("concepts/compiler", "The compiler"),
    "npu-compiler target": ("concepts/targets", "Targets"),
    "npu-compiler tune": ("guides/tuning", "Tune"),
    "npu-llm bench": ("guides/measuring", "Measure a model"),
    "npu-llm chat": ("guides/chat-sessions", "Chat sessions"),
    "npu-llm list": ("concepts/compile-cache", "The compile cache"),
    "npu-llm ps": ("guides/serving", "Serve a model"),
    "npu-llm check": ("guides/check-for-an-npu", "Check a model for an NPU"),
    "npu-llm describe": ("guides/images", "Vision-language models"),
    "npu-llm embed": ("guides/embeddings", "Embeddings and search"),
    "npu-llm eval": ("guides/measuring", "Measure a model"),
    "npu-llm export": ("get-started/first-answer", "First answer"),
    "npu-llm generate": ("get-started/first-answer", "First answer"),
    "npu-llm info": ("get-started/first-answer", "First answer"),
    "npu-llm merge": ("guides/adapters", "LoRA adapters"),
    "npu-llm cache": ("concepts/compile-cache", "The compile cache"),
    "npu-llm quantize": ("guides/choosing-a-precision", "Choose a precision"),
    "npu-llm rerank": ("guides/embeddings", "Embeddings and search"),
    "npu-llm serve": ("guides/serving", "Serve a model"),
    "npu-llm transcribe": ("guides/transcription", "Speech to text"),
    "npu-llm translate": ("guides/translation", "Translation and summaries"),
    "npu-ops conformance": ("guides/conformance", "Conformance"),
    "npu-ops explain": ("concepts/fallback", "Fallback"),
    "npu-ops new": ("guides/adding-an-op", "Add an operator"),
    "npu-ops replay": ("guides/debugging-accuracy", "Debug accuracy"),
    "npu-ops run": ("guides/debugging-accuracy", "Debug accuracy"),
    "npu-ops tune": ("concepts/fallback", "Fallback"),
    "npu-profiler compare": ("guides/reading-a-timeline", "Read a timeline"),
    "npu-profiler estimate": ("guides/estimated-time", "Estimate time on an NPU"),
    "npu-profiler trace": ("guides/profiling", "Profile"),
    "npu-runtime doctor": ("guides/npu-on-linux", "Set up an NPU on Linux"),
    "npu-runtime info": ("guides/device", "The device"),
}
# Every subcommand has them; the page of the command explains them.
_SHARED = ("--help", "--no-color", "--quiet", "--version")


def pages() -> dict[str, str]:
    """The text of each page, by its path below FOLDER."""
    found = {}
    for package in PACKAGES:
        command = read_command(package)
        parsers = {name: parser_of(one.module) for name, one in sorted(command.subcommands.items())}
        found[f"{command.name}/index.md"] = _overview(command, parsers)
        for name, parser in parsers.items():
            found[f"{command.name}/{name}.md"] = _page(parser, command.subcommands[name].summary)
    return found


def main() -> int:
    """Write the pages, and remove those of subcommands that are gone."""
    texts = pages()
    for old in FOLDER.rglob("*.md"):
        if old.relative_to(FOLDER).as_posix() not in texts:
            old.unlink()
    for name, text in texts.items():
        file = FOLDER / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    print(f"{len(texts)} pages below {FOLDER}")
    return 0


def _overview(command: Command, parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    rows = {name: f"[`{name}`]({name}.md)" for name in parsers}
    summaries = {name: one.summary for name, one in command.subcommands.items()}
    listed = [f"| {rows[name]} | {_prose(summaries[name])} |" for name in rows]
    listed.append(f"| `completion` | {_prose(COMPLETION_SUMMARY)} |")
    listed.append(f"| `help` | {_prose(HELP_SUMMARY)} |")
    shared = [action for action in next(iter(parsers.values()))._actions if _is_shared(action)]
    return "\n".join(
        [
            f"# {command.name} command",
            "",
            _prose(command.summary),
            "",
            "| Subcommand | Purpose |",
            "|---|---|",
            *sorted(listed),
            "",
            "Every subcommand takes these options:",
            "",
            *_definitions(next(iter(parsers.values())), shared),
        ]
    )


def _page(parser: argparse.ArgumentParser, summary: str) -> str:
    title = parser.prog.strip()
    lines = [f"# {title}", "", _sentence(summary), ""]
    description = _prose(parser.description or "")
    if description and description.rstrip(".").lower() != summary.rstrip(".").lower():
        lines += [description, ""]
    if title in GUIDES:
        address, words = GUIDES[title]
        lines += [f"Guide: [{words}](../../../{address}.md)", ""]
    lines += _body(parser, "##")
    for one in _inner(parser):
        lines += [
            f"## {one.prog.strip()}",
            "",
            _prose(one.description or ""),
            "",
            *_body(one, "###"),
        ]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    return text.rstrip() + "\n"


def _body(parser: argparse.ArgumentParser, heading: str) -> list[str]:
    options = [one for one in parser._actions if one.option_strings and not _is_shared(one)]
    arguments = [
        one
        for one in parser._actions
        if not one.option_strings and not isinstance(one, argparse._SubParsersAction)
    ]
    lines = ["```text", _usage(parser, options, arguments), "```", ""]
    suffix = "" if heading == "##" else f" of {parser.prog.split()[-1]}"
    for words, actions in (("Arguments", arguments), ("Options", options)):
        if actions:
            lines += [f"{heading} {words}{suffix}", "", *_definitions(parser, actions)]
    if parser.epilog:
        lines += [_prose(parser.epilog), ""]
    return lines


def _usage(
    parser: argparse.ArgumentParser,
    options: list[argparse.Action],
    arguments: list[argparse.Action],
) -> str:
    needed = [_invocation(parser, one) for one in options if one.required]
    words = [parser.prog.strip(), *needed]
    if any(not one.required for one in options):
        words.append("[OPTIONS]")
    formatter = parser._get_formatter()
    for one in arguments:
        shown = formatter._metavar_formatter(one, one.dest)(1)[0]
        words.append(formatter._format_args(one, shown))
    if _inner(parser):
        words.append("[ACTION]")
    return " ".join(words)


def _definitions(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> list[str]:
    formatter = parser._get_formatter()
    lines = []
    for action in actions:
        text = formatter._expand_help(action) if action.help else ""
        if action.required and action.option_strings:
            text = f"{text} (required)".lstrip()
        shown = _invocation(parser, action)
        lines += [f"`{shown}`", f":   {_prose(text) or '–'}", ""]
    return lines


def _invocation(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    shown = formatter._metavar_formatter(action, action.dest.upper())(1)[0]
    if not action.option_strings:
        return shown
    value = "" if action.nargs == 0 else f" {formatter._format_args(action, shown)}"
    return ", ".join(action.option_strings) + value


def _is_shared(action: argparse.Action) -> bool:
    return any(name in _SHARED for name in action.option_strings)


def _inner(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    return [
        inner
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for inner in action.choices.values()
    ]


def _sentence(text: str) -> str:
    text = _prose(text)
    if not text:
        return ""
    first = text if text.split()[0].startswith("`") else text[0].upper() + text[1:]
    return first if first.endswith((".", "!", "?")) else f"{first}."


def _prose(text: str) -> str:
    """Help as Markdown: one line, options and file names as code, signs of Markdown as they are."""
    text = " ".join(text.split())
    text = re.sub(r"([*_<|])", r"\\\1", text)
    return re.sub(r"(?<![\w`-])(--[a-z][a-z0-9-]*)", r"`\1`", text)


if __name__ == "__main__":
    sys.exit(main())
