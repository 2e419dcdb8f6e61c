"""Kinds of values that several tables of burstd.toml have."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from burstd.domain.units import SIZE_FORMAT, parse_size

RESTART: dict[str, JsonValue] = {"restart": True}
SECRET: dict[str, JsonValue] = {"secret": True}


def _size(value: object) -> object:
    """A bare number is bytes; units as in job scripts."""
    if not isinstance(value, str):
        return value
    size = parse_size(value.strip())
    if size is None:
        raise ValueError(f"must be a number of bytes, or as in '200M', '500G' or '2T': {SIZE_FORMAT}")
    return size


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path: a daemon has no folder of its own to start from")
    return path


def matching(pattern: str, message: str) -> AfterValidator:
    """Text that fits a pattern whole; ``says`` is the fault where it does not."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(message)
        return text

    return AfterValidator(check)


Seconds = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Hours = Seconds
Money = Annotated[Decimal, Field(gt=0, le=1_000_000, allow_inf_nan=False, strict=False)]
CurrencyCode = Annotated[str, matching(r"[A-Z]{3}", "must be the code of a currency, such as 'EUR'")]
Count = Annotated[int, Field(strict=True, ge=1)]
Size = Annotated[int, BeforeValidator(_size), Field(strict=True, ge=1)]
"""Bytes, or bytes a second."""
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Name = Annotated[
    str,
    matching(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", "the name must be 1 to 32 letters, digits, '-' and '_'"),
]

ModuleName = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9_.+/-]{0,99}", "must be a module's name, with or without /VERSION")
]
NODE_PATH = r"/[!-~]{1,250}"
NODE_PATH_FAULT = "must be an absolute path of at most 250 characters, no blanks"
NodePath = Annotated[str, matching(NODE_PATH, NODE_PATH_FAULT)]


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
