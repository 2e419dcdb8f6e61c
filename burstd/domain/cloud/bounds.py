"""Numbers and names that clouds say, kept within what can be. Everything that is made of them counts on that."""

from __future__ import annotations

import ipaddress
import math
import re

MAX_TIME_S = 4e9
"""No time that a cloud says is later, in seconds since 1970: that is in 2096."""
MAX_RETRY_AFTER_S = 3600.0
MAX_CAPACITY_WAIT_S = 86400.0
MAX_PRICE = 10**9
"""Of one machine for an hour, in any currency."""
MAX_CPUS, MAX_MEMORY_MIB, MAX_GRES = 10**6, 10**9, 10**5
"""Of one machine."""
MAX_NAME_LENGTH = 255
"""Characters of a name or an id."""
_ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9:.%_-]{0,254}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def clamped(seconds: float, most: float) -> float:
    """The length of time, between 0 and ``most``; 0 where it is no number."""
    try:
        value = float(seconds)
    except (OverflowError, TypeError, ValueError):
        return 0.0
    return min(max(value, 0.0), most) if not math.isnan(value) else 0.0


def valid_time(seconds: float) -> float:
    """The time since 1970; 0, which stands for not known, where it cannot be one."""
    try:
        value = float(seconds)
    except (OverflowError, TypeError, ValueError):
        return 0.0
    return value if 0.0 <= value <= MAX_TIME_S else 0.0


def valid_name(text: str, what: str) -> str:
    """The text, where it can be a name or an id of a cloud's. Raises ValueError: changed it would name another."""
    if len(text) > MAX_NAME_LENGTH or not text.isprintable() or text.startswith("-") or text != text.strip():
        raise ValueError(f"{text[:40]!r} cannot be {what}")
    return text


def normal_address(text: str) -> str:
    """In the one form in which two of them can be compared; empty: it can be none."""
    if not _ADDRESS.fullmatch(text):
        return ""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return text  # a host's name, as tests have them: the prover refuses it
    return str(getattr(found, "ipv4_mapped", None) or found)


def valid_tag_value(text: str) -> str:
    """The value of a tag, where it can be one that burstd made; empty: it cannot."""
    return text if _WORD.fullmatch(text) else ""
