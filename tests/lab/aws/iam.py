"""An identity policy, and whether it allows a call.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html: what no statement allows is
denied, and a statement that denies wins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Context = Mapping[str, Sequence[str]]
"""Condition key -> its values in this call; absent: the key does not apply."""


@dataclass(frozen=True)
class Need:
    """One thing that a call must be allowed to do."""

    action: str
    """As ``ec2:RunInstances``."""
    resource: str
    context: Context


class Policy:
    """A policy document. Raises ValueError for parts that this does not know."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._statements = [_Statement(one) for one in _many(document["Statement"])]

    @classmethod
    def read(cls, path: Path) -> Policy:
        """From a file of JSON."""
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def allows(self, need: Need) -> bool:
        """Whether it may be done."""
        fitting = [one for one in self._statements if one.fits(need)]
        return any(one.allow for one in fitting) and all(one.allow for one in fitting)


class _Statement:
    def __init__(self, words: Mapping[str, Any]) -> None:
        unknown = set(words) - {"Sid", "Effect", "Action", "Resource", "Condition"}
        if unknown:
            raise ValueError(f"a policy's statement has {sorted(unknown)}, which the mock does not know")
        self.allow = words["Effect"] == "Allow"
        self._actions = [_pattern(one, re.IGNORECASE) for one in _many(words["Action"])]
        self._resources = [_pattern(one) for one in _many(words["Resource"])]
        self._conditions = [
            _Condition(operator, key, _many(values))
            for operator, keys in words.get("Condition", {}).items()
            for key, values in keys.items()
        ]

    def fits(self, need: Need) -> bool:
        return (
            any(one.fullmatch(need.action) for one in self._actions)
            and any(one.fullmatch(need.resource) for one in self._resources)
            and all(one.holds(need.context) for one in self._conditions)
        )


class _Condition:
    """One operator on one key. https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html"""

    _KNOWN = frozenset(
        {"StringEquals", "StringNotEquals", "StringLike", "StringNotLike", "ArnEquals", "ArnLike", "Bool"}
    )

    def __init__(self, operator: str, key: str, values: Sequence[str]) -> None:
        self._key, self._null = key.lower(), operator == "Null"
        self._set, _, plain = operator.rpartition(":")
        self._if_exists = plain.endswith("IfExists")
        plain = plain.removesuffix("IfExists")
        if not self._null and (plain not in self._KNOWN or self._set not in ("", "ForAllValues", "ForAnyValue")):
            raise ValueError(f"the mock does not know the condition operator {operator}")
        self._not = "Not" in plain
        exact = plain in ("StringEquals", "StringNotEquals", "Bool")
        self._values = [str(one).lower() if self._null or plain == "Bool" else one for one in map(str, values)]
        self._patterns = [re.compile(re.escape(one)) if exact else _pattern(one) for one in self._values]

    def holds(self, context: Context) -> bool:
        lowered = {key.lower(): values for key, values in context.items()}
        found = lowered.get(self._key)
        if self._null:
            return (found is None) == (self._values == ["true"])
        if found is None:
            return self._if_exists or self._not or self._set == "ForAllValues"
        hits = [any(one.fullmatch(value) for one in self._patterns) != self._not for value in found]
        return any(hits) if self._set == "ForAnyValue" else all(hits)


def _many(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Iterable) and not isinstance(value, (str, Mapping)) else [value]


def _pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """``*`` and ``?`` are special, nothing else."""
    return re.compile("".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in text), flags | re.DOTALL)
