"""Writes HTML and SVG. Every text is escaped, unless it was made here."""

from __future__ import annotations

import re
from html import escape

_VOID = {"meta", "wbr"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(element: str, *children: str, **attributes: str | float | None) -> Markup:
    """An element. ``class_`` becomes ``class``, ``text_anchor`` becomes ``text-anchor``; None leaves one out."""
    words = [element]
    for key, value in attributes.items():
        if value is not None:
            text = value if isinstance(value, str) else number(value)
            words.append(f'{_attribute(key)}="{_clean(text)}"')
    head = f"<{' '.join(words)}>"
    return Markup(head) if element in _VOID else Markup(f"{head}{joined(*children)}</{element}>")


def joined(*parts: str) -> Markup:
    """One after the other."""
    return Markup("".join(part if isinstance(part, Markup) else _clean(part) for part in parts))


def number(value: float) -> str:
    """A coordinate: a tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0")


def _attribute(key: str) -> str:
    return key if key in {"viewBox", "preserveAspectRatio"} else key.rstrip("_").replace("_", "-")


def _clean(text: str) -> str:
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), quote=True)
