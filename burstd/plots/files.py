"""Plots as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

_SCALE = 2
"""Pixels of a PNG for each of the SVG."""


class NoPngError(Exception):
    """The library that makes them is not there; the message says which."""


def write_svg(folder: Path, plots: Mapping[str, str]) -> list[Path]:
    """Writes SVGs, by the names of their files, into a folder, which is made; gives the files. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / f"{name}.svg" for name in plots]
    for path, text in zip(made, plots.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return made


def write_png(drawn: Sequence[Path]) -> list[Path]:
    """Writes each SVG as PNG beside it, in light colours; gives the files. Raises NoPngError, OSError."""
    try:
        from cairosvg import svg2png  # noqa: PLC0415  # an extra
    except (ImportError, OSError) as error:  # OSError: cairo is missing
        raise NoPngError(f"PNG needs the extra plots (pip install 'burstd[plots]') and cairo: {error}") from None
    made = [path.with_suffix(".png") for path in drawn]
    for path, source in zip(made, drawn, strict=True):
        svg2png(bytestring=source.read_bytes(), write_to=str(path), scale=_SCALE)
    return made
