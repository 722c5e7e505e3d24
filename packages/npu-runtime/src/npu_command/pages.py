"""HTML pages from templates, which lie beside the module that writes the page."""

from __future__ import annotations

from pathlib import Path

__all__ = ["render_page"]


def render_page(template: Path, **values: object) -> str:
    """Fills a template of jinja2; what is put in is escaped.

    Args:
        template: its file; others in its folder can be included.
        values: what it names. One that it names and does not get is an error.

    Returns:
        The page.
    """
    # Importing jinja2 takes 50 ms, and most commands write no page.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template.name).render(values)
