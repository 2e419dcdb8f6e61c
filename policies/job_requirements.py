"""Job requirements of the policy ``broker``: parsed from the comment, and compared with what a machine has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import ceil

from burstd.domain.slurm.comment import IDLE_ALLOWED

_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_MIB = {"K": Decimal(1) / 1024, "": Decimal(1), "M": Decimal(1), "G": Decimal(1024), "T": Decimal(1024) ** 2}
_BLANK_AT_EQUALS = re.compile(r" =|= [^ =]+(?: |$)")
_NEXT_WORD = re.compile("[,;]([a-z-]+)=")
_MAX_CHARACTERS = 500
"""Characters of the requirements of a job."""
ARCHITECTURES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "arm": "aarch64"}


@dataclass(frozen=True, slots=True)
class OfferHardware:
    """What an offer's machine has, as far as is known; words in lower case."""

    cpus: int
    memory_mib: int
    gpus: int
    maker: str
    models: frozenset[str]
    gpu_memory_mib: int
    arch: str
    containers: frozenset[str]
    tags: frozenset[str]


_Check = Callable[[OfferHardware], str]
"""Why a machine does not meet the requirement; empty: it has."""


@dataclass(frozen=True, slots=True)
class JobRequirement:
    """What one job requires, or what is wrong with how it says so."""

    text: str
    checks: tuple[_Check, ...] = ()
    syntax_error: str = ""
    gpus: int = 0
    """Of each node, as are these; 0: not named."""
    cpus: int = 0
    memory_mib: int = 0
    models: tuple[str, ...] = ()
    """Patterns of GRES types, one of which its GPUs are to have."""

    def unmet_reason(self, machine: OfferHardware) -> str:
        """Why a machine does not have it all; empty: it has."""
        return next((why for check in self.checks if (why := check(machine))), "")

    def unmet_reasons(self, machine: OfferHardware) -> tuple[str, ...]:
        """All that a machine lacks."""
        return tuple(why for check in self.checks if (why := check(machine)))


def parse_requirement(text: str) -> JobRequirement:
    """Reads ``gpu=3 model=a100 mem=300 ...``. A word that is given twice is an error."""
    # It stands in messages that others read.
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(shown) > _MAX_CHARACTERS:
        return JobRequirement(
            shown[:_MAX_CHARACTERS], syntax_error=f"burst: requirements are limited to {_MAX_CHARACTERS} characters"
        )
    checks: list[_Check] = []
    sizes = {"gpu": 0, "cpu": 0, "mem": 0}
    models: tuple[str, ...] = ()
    given: set[str] = set()
    if _BLANK_AT_EQUALS.search(shown):
        return JobRequirement(shown, syntax_error=f"burst: {shown}: no blanks may stand around '='")
    for part in shown.split():
        word, equals, value = part.partition("=")
        if word.lower() == "idle":
            return JobRequirement(shown, syntax_error=f"burst: {part}: must be {IDLE_ALLOWED}")
        make_check = _KEYWORDS.get(word.lower())
        if make_check is None:
            close = get_close_matches(word.lower(), _KEYWORDS, n=1)
            hint = f", did you mean {close[0]}?" if close else f"; known words: {', '.join(_KEYWORDS)}"
            return JobRequirement(shown, syntax_error=f"burst: unknown word {word}{hint}")
        if not equals or not value:
            return JobRequirement(shown, syntax_error=f"burst: {word} needs a value: {word}=...")
        same = word.lower().replace("gpu-model", "model")
        if same in given:
            return JobRequirement(shown, syntax_error=f"burst: {word} is given twice")
        given.add(same)
        if any(follows in _KEYWORDS for follows in _NEXT_WORD.findall(value.lower())):
            blanks = " ".join(re.split("[,;]", part))
            return JobRequirement(shown, syntax_error=f"burst: {part}: words are separated by blanks: {blanks}")
        try:
            checks.append(make_check(value.lower()))
        except ValueError as error:
            return JobRequirement(shown, syntax_error=f"burst: {part}: {error}")
        size = word.lower().rpartition("-")[2] if not word.lower().startswith("gpu-") else ""
        if size in sizes:
            sizes[size] = max(sizes[size], parse_mebibytes(value) if size == "mem" else _number(value))
        elif word.lower() in ("model", "gpu-model"):
            models = _either(value.lower())
    return JobRequirement(shown, tuple(checks), "", sizes["gpu"], sizes["cpu"], sizes["mem"], models)


def _gpus(maker: str) -> Callable[[str], _Check]:
    def make(value: str) -> _Check:
        least = _number(value)
        what = f"{maker} GPUs".strip()
        return lambda m: (
            f"{m.gpus} GPUs, {least} required"
            if m.gpus < least
            else f"GPUs not known to be {what}"
            if least and maker and m.maker != maker
            else ""
        )

    return make


def _cpus(value: str) -> _Check:
    least = _number(value)
    return lambda m: f"{m.cpus} CPUs, {least} required" if m.cpus < least else ""


def _memory(value: str) -> _Check:
    least = parse_mebibytes(value)
    return lambda m: f"{m.memory_mib} MiB of memory, {least} required" if m.memory_mib < least else ""


def _gpu_memory(value: str) -> _Check:
    least = parse_mebibytes(value)

    def check(machine: OfferHardware) -> str:
        there = machine.gpu_memory_mib
        if there >= least:
            return ""
        return f"{there} MiB of GPU memory, {least} required" if there else f"GPU memory unknown{_remedy('gpu_memory')}"

    return check


def _models(value: str) -> _Check:
    wanted = _either(value)

    def check(machine: OfferHardware) -> str:
        if any(fnmatchcase(model, pattern) for model in machine.models for pattern in wanted):
            return ""
        if not machine.gpus:
            return f"no GPU, {value} required"
        remedy = "" if machine.models else _remedy("gpu_models")
        return f"GPUs are {_listed(machine.models)}, not {value}{remedy}"

    return check


def _architecture(value: str) -> _Check:
    wanted = {ARCHITECTURES.get(word, word) for word in _either(value)}

    def check(machine: OfferHardware) -> str:
        if machine.arch in wanted:
            return ""
        return f"architecture is {machine.arch or 'not known'}, not {value}" + ("" if machine.arch else _remedy("arch"))

    return check


def _containers(value: str) -> _Check:
    return _all_of(value, "containers", lambda machine: machine.containers)


def _tags(value: str) -> _Check:
    return _all_of(value, "tags", lambda machine: machine.tags)


def _not_tags(value: str) -> _Check:
    shunned = frozenset(word for part in _both(value) for word in _either(part))
    return lambda m: f"has tag {_listed(shunned & m.tags)}" if shunned & m.tags else ""


def _all_of(value: str, what: str, there: Callable[[OfferHardware], frozenset[str]]) -> _Check:
    wanted = [frozenset(_either(part)) for part in _both(value)]
    return lambda m: (
        ""
        if all(some & there(m) for some in wanted)
        else f"{what} are {_listed(there(m))}, {value} required"
    )  # fmt: skip


_KEYWORDS: Mapping[str, Callable[[str], _Check]] = {
    "nvidia-gpu": _gpus("nvidia"),
    "amd-gpu": _gpus("amd"),
    "gpu": _gpus(""),
    "cpu": _cpus,
    "mem": _memory,
    "model": _models,
    "gpu-model": _models,
    "gpu-mem": _gpu_memory,
    "arch": _architecture,
    "container": _containers,
    "tag": _tags,
    "not-tag": _not_tags,
}


def _number(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", value):
        raise ValueError("must be a number, such as 3 or 1.5")
    return ceil(Decimal(value))


def parse_mebibytes(value: str) -> int:
    """MiB, rounded up, of a number with or without a unit; raises ValueError where it is none."""
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise ValueError("must be MiB, or a number and a unit: K, M, G or T")
    return ceil(Decimal(found[1]) * _MIB[found[2].upper()])


def _either(value: str) -> tuple[str, ...]:
    return _words(value, "|")


def _both(value: str) -> tuple[str, ...]:
    return _words(value, ",")


def _words(value: str, between: str) -> tuple[str, ...]:
    words = tuple(value.split(between))
    if not all(words):
        raise ValueError("must be words separated by '|' or ','")
    return words


def _remedy(key: str) -> str:
    return f" (an administrator can state {key} in [policies.broker.offers])"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "not known"


def lowercase_set(words: Iterable[str]) -> frozenset[str]:
    """Words as they are compared."""
    return frozenset(word.lower() for word in words)
