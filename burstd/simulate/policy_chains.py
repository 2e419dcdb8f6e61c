"""Chains of policies to be replayed, made of the installed plug-ins with the site's settings.

``wait_aware,idle`` is a chain; a policy may have settings of its own in parentheses: ``wait_aware(value=20),idle``. The
words for comparison are chains of shipped policies too, but for ``never``, which has no cloud.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burstd.domain.plugins.policy import Policy
from burstd.settings import PluginRegistry, PolicyChainSettings, Settings, resolve_plugins

NEVER = "never"
IMMEDIATE = "immediate"
BASELINES = (NEVER, IMMEDIATE, "aged:600", "aged:3600")
_AGED = re.compile(r"aged:(\d+)")
_LINK = re.compile(r"\s*([A-Za-z_][\w-]*)\s*(?:\(([^()]*)\))?\s*(?:,|$)")

Tables = Mapping[str, Mapping[str, Any]]
"""Settings by policy."""


class PolicyChainError(ValueError):
    """A chain or a setting is not written as it should be; the message says how."""


@dataclass(frozen=True, slots=True)
class PolicyChain:
    """One chain. ``policies`` makes them anew; None: there is no cloud."""

    name: str
    policies: Callable[[], Sequence[Policy]] | None


def make_policy_chain(text: str, settings: Settings, overrides: Sequence[str], plugins: PluginRegistry) -> PolicyChain:
    """The chain of these words.

    ``settings`` has the tables of policies, ``sets`` changes single ones of them (``wait_aware.value=20``). Raises
    ChainError, and SettingsError for policies that are not there and settings that they do not take.
    """
    text = text.strip()
    if text == NEVER:
        return PolicyChain(text, None)
    names, own = _parse_chain(text)
    tables: dict[str, dict[str, Any]] = {name: dict(table) for name, table in settings.policies.policy_tables.items()}
    for word in overrides:
        _set_value(tables, word)
    for name, table in own.items():
        tables[name] = {**tables.get(name, {}), **table}
    if _AGED.fullmatch(text):
        # What the site has set for the policy is not what this word means.
        tables["backlog"] = own["backlog"]
    chosen = settings.model_copy(update={"policies": PolicyChainSettings.model_validate({**tables, "chain": names})})
    resolved = resolve_plugins(chosen.model_copy(update={"providers": {}}), plugins).policies
    return PolicyChain(text, lambda: [one.plugin.make(one.settings) for one in resolved])


def _parse_chain(text: str) -> tuple[tuple[str, ...], dict[str, dict[str, Any]]]:
    """Names of the policies, and the settings that stand with them."""
    if text == IMMEDIATE:
        return ("idle",), {}
    aged = _AGED.fullmatch(text)
    if aged:
        return ("backlog", "idle"), {"backlog": {"min_jobs": 1, "min_age_s": int(aged[1])}}
    names: list[str] = []
    own: dict[str, dict[str, Any]] = {}
    at = 0
    while at < len(text):
        link = _LINK.match(text, at)
        if link is None:
            raise PolicyChainError(
                f"{text!r} is no chain: expected names of policies with commas between them, such as"
                f" wait_aware,idle or wait_aware(value=20),idle, or one of {', '.join(BASELINES)}"
            )
        names.append(link[1])
        for word in (link[2] or "").split(","):
            if word.strip():
                _set_value(own, f"{link[1]}.{word.strip()}")
        at = link.end()
    if not names:
        raise PolicyChainError(
            f"a chain has no policy; expected such as wait_aware,idle, or one of {', '.join(BASELINES)}"
        )
    return tuple(names), own


def _set_value(tables: dict[str, dict[str, Any]], word: str) -> None:
    """One setting, as ``POLICY.KEY=VALUE``; the value as in TOML, or else a word."""
    path, equals, value = word.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or len(keys) < 2 or not all(keys):
        raise PolicyChainError(f"{word!r} is no setting: expected POLICY.KEY=VALUE, such as wait_aware.value=20")
    try:
        found = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        found = value.strip()
    table = tables
    for key in keys[:-1]:
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            raise PolicyChainError(f"{word!r} cannot be set: {key} is a value, not a table")
        table = inner
    table[keys[-1]] = found
