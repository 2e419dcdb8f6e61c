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
from burstd.domain.plugins.read_only import shielded_snapshot, shielded_target
from burstd.domain.snapshot import Snapshot
from burstd.settings.plugins.foreign_code import Overran, call_foreign

REST_S = 60.0
"""After an overrun, for which a policy is not asked: else every loop would stand still for its time limit."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How it went the last time, and the last time that it failed. Times in burstd's seconds since 1970."""

    at: float = 0.0
    """Of the decision; 0: not asked yet."""
    took_s: float = 0.0
    """For all of that decision: a hard policy is asked twice."""
    failing: bool = False
    failed_at: float = 0.0
    """0: never."""
    error: str = ""


class Guarded:
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
        self.asked = Asked()
        """Replaced as a whole, so that any thread may read it."""
        self._policy = policy
        self._timeout_s = timeout_s
        self._home = home
        self._rests_until = float("-inf")

    def twin(self) -> Guarded:
        """The same policy with a memory of its own: what comes of trials is not held against it."""
        made = Guarded(
            self._policy, self._timeout_s, self._home,
            name=self.name, hard=self.hard, last=self.last, payers=self.payers,
        )  # fmt: skip
        made.asked, made._rests_until = self.asked, self._rests_until
        return made

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """The policy's answer. Raises PolicyBroken."""
        if snapshot.now < self._rests_until:
            raise PolicyBroken(self.asked.error)
        before, began = self.asked, time.perf_counter()
        error = ""
        try:
            seen, shown = shielded_snapshot(snapshot), shielded_target(target)
            found = call_foreign(
                lambda: _answer(self._policy.evaluate(seen, shown), shown), self._timeout_s, self._home
            )
            return _unshielded(found, shown, target)
        except Overran as overran:
            error = f"{overran}; it is asked again after {REST_S:g} s"
            self._rests_until = snapshot.now + REST_S
            raise PolicyBroken(error) from None
        except PolicyBroken as broken:
            error = str(broken)
            raise
        finally:
            took = time.perf_counter() - began + (before.took_s if before.at == snapshot.now else 0.0)
            failed_at, last = (snapshot.now, error) if error else (before.failed_at, before.error)
            self.asked = Asked(snapshot.now, took, bool(error), failed_at, last)


def for_trial(policies: Sequence[Policy]) -> list[Policy]:
    """The policies for a question that is no decision."""
    return [policy.twin() if isinstance(policy, Guarded) else policy for policy in policies]


def _answer(found: object, shown: Target) -> Target:
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
    for name in ("offers", "placed"):
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
        placed=given.placed if found.placed is shown.placed else found.placed,
    )
