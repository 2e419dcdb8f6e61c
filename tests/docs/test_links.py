"""Every link of the documents leads to a file, and to a heading, that is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.programs import PROJECT

PAGES = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md")])
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def _prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def _anchors(page: Path) -> Iterator[str]:
    """As GitHub makes them of headings: lower case, blanks as hyphens, no other punctuation."""
    for heading in re.findall(r"^#{1,6} (.*)$", _prose(page), re.MULTILINE):
        yield re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        name, _, anchor = link.partition("#")
        if ":" in name:
            continue
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            lost.append(link)
    assert lost == []
