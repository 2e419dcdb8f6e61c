"""Sizes and lengths of time, as people write and read them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

MAX_SIZE = 2**63 - 1
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?) ?(?:([kmgtp])(i?b)?|b)", re.IGNORECASE)
_PREFIXES = "KMGTP"
SIZE_FORMAT = (
    "a number and a unit: B, K, M, G, T or P (also KiB, MiB ...) for powers of 1024, KB, MB ... for powers of 1000"
)

_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(s|m|min|h|d)")
_SPAN_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def parse_size(text: str) -> int | None:
    """Bytes of ``10G``, ``1.5TiB``, ``500MB``; None where it is no size. Fractions of a byte are cut off.

    As in Slurm's burst buffers K, KiB, M ... are powers of 1024, and KB, MB ... powers of 1000. A bare number is no
    size: to some it is bytes, to others MiB.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    number, prefix, rest = found.groups()
    base = 1000 if (rest or "").upper() == "B" else 1024
    size = int(Decimal(number) * base ** (_PREFIXES.index(prefix.upper()) + 1 if prefix else 0))
    return size if size <= MAX_SIZE else None


def parse_span(text: str) -> float | None:
    """Seconds of ``90s``, ``15m``, ``1.5h``, ``2d``; None where it is no length of time. A bare number is none."""
    found = _SPAN.fullmatch(text)
    return None if found is None else float(found[1]) * _SPAN_UNITS[found[2]]


def size_text(size: float) -> str:
    """Bytes for a person, with three digits or as a whole number: ``512 B``, ``1.21 GiB``, ``64 GiB``, ``1000 MiB``."""
    number, unit = float(size), "B"
    for prefix in _PREFIXES:
        if number < 1024:
            break
        number, unit = number / 1024, f"{prefix}iB"
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"


def memory_text(mebibytes: float) -> str:
    """The same of MiB."""
    return size_text(mebibytes * (1 << 20))


def span_text(seconds: float) -> str:
    """A length of time for a person, in the two largest units: ``40 s``, ``2 min 20 s``, ``3 h 5 min``."""
    left = max(0, round(seconds))
    for unit, length, below, smaller in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if left >= length:
            rest = left % length // smaller
            return f"{left // length} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{left} s"


def money_text(amounts: Iterable[tuple[str, Decimal]]) -> str:
    """The sums by currency: ``1.20 EUR and 0.30 USD``; empty: there are none."""
    sums: dict[str, Decimal] = {}
    for currency, amount in amounts:
        sums[currency] = sums.get(currency, Decimal(0)) + amount
    return " and ".join(f"{amount:.2f} {currency}" for currency, amount in sums.items())
