"""Filters of templates that only the pages need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from burstd.api.answers import compare_text, text

_CLASSES = {
    "good": {"in_service", "ready", "running", "covered", "idle", "mixed", "allocated", "ok", "staged", "delivered"},
    "busy": {
        "boot", "planned", "launching", "booting", "validating", "uploading", "fetching", "collecting", "delivering",
        "configuring", "completing", "add",
    },
    "warn": {"wait", "held", "drained", "unready", "pending", "draining", "waiting", "drop", "warn"},
    "bad": {"impossible", "failed", "lost", "down", "error", "unknown"},
}  # fmt: skip
_CLASS_OF = {word: name for name, words in _CLASSES.items() for word in words}


def state_class(word: str) -> str:
    """The style of a state or verdict; its word always stands beside the colour."""
    return _CLASS_OF.get(word, "still")


def clipped(value: object, chars: int) -> str:
    """The beginning of a long text."""
    found = str(value)
    return found if len(found) <= chars else f"{found[: chars - 1].rstrip()}\u2026"


def gpu_number(value: float) -> str:
    """``4``, ``0.5``."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def count(number: int) -> str:
    """``10,000``."""
    return f"{number:,}"


def figure(value: float) -> str:
    """``1,234``, ``12.3``, ``0.04``."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def utc_day(then: datetime) -> str:
    """``21 Sep 2026 14:00 UTC``."""
    return f"{then.astimezone(UTC):%d %b %Y %H:%M UTC}"


PAGE_FILTERS: Mapping[str, Callable[..., Any]] = {
    "clipped": clipped,
    "count": count,
    "figure": figure,
    "state_class": state_class,
    "gpus": gpu_number,
    "utc_day": utc_day,
    "elapsed": text.elapsed_text,
    "bill_parts": text.bill_parts_text,
    "converted": text.converted_text,
    "site_cost": text.site_cost_text,
    "forecast": text.forecast_text,
    "whose": compare_text.whose_text,
    "percent": compare_text.percent_text,
    "break_even": compare_text.break_even_text,
    "likeness": compare_text.likeness_text,
    "record_begin": compare_text.record_text,
}
