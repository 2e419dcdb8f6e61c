"""A policy in the chain, held to its time, kept from what is not its own, and its answers kept in mind.

Whatever a policy does, one of two things comes of it: its answer, or PolicyBroken, which holds everything.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from burstd.domain.errors import PolicyBroken
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.plugins.read_only import read_only_snapshot, read_only_target
from burstd.domain.snapshot import Snapshot
from burstd.settings.plugins.foreign_code import PolicyTimedOut, call_plugin_code

OVERRUN_PAUSE_S = 60.0
"""After an overrun, for which a policy is not asked: else every loop would stand still for its time limit."""


@dataclass(frozen=True, slots=True)
class LastEvaluation:
    """How it went the last time, and the last time that it failed. Times in burstd's seconds since 1970."""

    evaluated_at: float = 0.0
    """Of the decision; 0: not asked yet."""
    took_s: float = 0.0
    """For all of that decision: a hard policy is asked twice."""
    failing: bool = False
    failed_at: float = 0.0
    """0: never."""
    error: str = ""


class IsolatedPolicy:
    """Stands for the policy in the chain (burstd.domain.plugins.policy.Policy)."""

    def __init__(
        self,
        policy: Policy,
        timeout_s: float,
        home: Path | None = None,
        *,
        name: str,
        hard: bool = False,
        last: int = 0,
        payers: Mapping[str, frozenset[str]] = MappingProxyType({}),
    ) -> None:
        """``name``, ``hard``, ``last`` and ``payers`` are as they were when it was made: it may work them out."""
        self.name = name
        self.hard = hard
        self.last = last
        self.payers = payers
        self.last_evaluation = LastEvaluation()
        """Replaced as a whole, so that any thread may read it."""
        self._policy = policy
        self._timeout_s = timeout_s
        self._package_dir = home
        self._paused_until = float("-inf")

    def copy_for_trial(self) -> IsolatedPolicy:
        """The same policy with a memory of its own: failures in a dry run do not count."""
        made = IsolatedPolicy(
            self._policy, self._timeout_s, self._package_dir,
            name=self.name, hard=self.hard, last=self.last, payers=self.payers,
        )  # fmt: skip
        made.last_evaluation, made._paused_until = self.last_evaluation, self._paused_until
        return made

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """The policy's answer. Raises PolicyBroken."""
        if snapshot.now < self._paused_until:
            raise PolicyBroken(self.last_evaluation.error)
        before, began = self.last_evaluation, time.perf_counter()
        error = ""
        try:
            seen, shown = read_only_snapshot(snapshot), read_only_target(target)
            found = call_plugin_code(
                lambda: _checked_target(self._policy.evaluate(seen, shown), shown), self._timeout_s, self._package_dir
            )
            return _unshielded(found, shown, target)
        except PolicyTimedOut as overran:
            error = f"{overran}; it is asked again after {OVERRUN_PAUSE_S:g} s"
            self._paused_until = snapshot.now + OVERRUN_PAUSE_S
            raise PolicyBroken(error) from None
        except PolicyBroken as broken:
            error = str(broken)
            raise
        finally:
            took = time.perf_counter() - began + (before.took_s if before.evaluated_at == snapshot.now else 0.0)
            failed_at, last = (snapshot.now, error) if error else (before.failed_at, before.error)
            self.last_evaluation = LastEvaluation(snapshot.now, took, bool(error), failed_at, last)


def copies_for_trial(policies: Sequence[Policy]) -> list[Policy]:
    """The policies for a question that is no decision."""
    return [policy.copy_for_trial() if isinstance(policy, IsolatedPolicy) else policy for policy in policies]


def _checked_target(found: object, shown: Target) -> Target:
    """What a policy returned, as far as it must be looked at while it can still be interrupted."""
    if not isinstance(found, Target):
        raise PolicyBroken(f"it returned {type(found).__name__}, not a Target")
    changes: dict[str, Any] = {}
    for name in ("wants", "releases", "remarks"):
        value = getattr(found, name)
        if type(value) is list:
            changes[name] = tuple(value)
        elif type(value) is not tuple:
            raise PolicyBroken(f"it returned {name} as {type(value).__name__}, not as a tuple")
    for name in ("offers", "placements"):
        value = getattr(found, name)
        if not isinstance(value, Mapping):
            raise PolicyBroken(f"it returned {name} as {type(value).__name__}, not as a mapping")
        if value is not getattr(shown, name):
            # Another kind of mapping runs code of its own wherever it is read, and may take any time for it.
            changes[name] = dict(value)
    return replace(found, **changes) if changes else found


def _unshielded(found: Target, shown: Target, given: Target) -> Target:
    """With the mappings that it was given, where it left them as they are."""
    return replace(
        found,
        offers=given.offers if found.offers is shown.offers else found.offers,
        placements=given.placements if found.placements is shown.placements else found.placements,
    )
