"""The node of the site that machines are compared with: what facts.sh printed there, as it is kept in the record."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field

from burstd.domain.cloud.quoting import one_line
from burstd.node.facts import NO_LIMIT, MachineFacts, parse_facts

REFERENCE_KEY = "reference"
"""Under which the record has it."""
MAX_ANSWER_CHARS = 256 << 10
"""An answer of facts.sh that is longer is none."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A node of the site, looked at once."""

    node: str
    seen: float
    """When, in burstd's seconds since 1970."""
    answer: str
    """What facts.sh printed there."""
    facts: MachineFacts = field(compare=False, repr=False)

    @classmethod
    def from_answer(cls, node: str, seen: float, answer: str) -> Reference:
        """``node``: its name; empty: as it calls itself. Raises ValueError, with a sentence."""
        facts = parse_facts(answer, asked=0.0, answered=0.0) if len(answer) <= MAX_ANSWER_CHARS else None
        if facts is None:
            raise ValueError(
                "this is not, or not all of, what 'burstctl node reference --script' prints on a node: "
                "run that script there again"
            )
        return cls(one_line(node or facts.hostname, 100), seen, answer, facts)

    @classmethod
    def from_record(cls, text: str) -> Reference | None:
        """What ``to_record`` gave; None for an empty text."""
        return cls.from_answer(**json.loads(text)) if text else None

    def to_record(self) -> str:
        """As the record keeps it."""
        kept = asdict(self)
        del kept["facts"]
        return json.dumps(kept)

    def warnings(self, sentinels: Iterable[str], modules: Collection[str]) -> list[str]:
        """What it cannot be a measure of, and what comes of that."""
        facts, refused = (
            self.facts,
            "machines without it are refused: mend it and take the reference anew, or correct",
        )
        found = [
            f"{self.node}, the reference, cannot read {path}; {refused} 'sentinels' in [node]"
            for path in sentinels
            if facts.sentinels.get(path) == ""
        ]
        if modules and not facts.module_command:
            names = ", ".join(modules)
            return [*found, f"{self.node} has no module command in a login shell; {names} cannot be compared"]
        return found + [
            f"{self.node}, the reference, has no module {name}; {refused} 'modules' in [node]"
            for name in modules
            if facts.modules.get(name) == ""
        ]

    def summary(self) -> dict[str, str]:
        """What it says of itself, by subject; without what it does not say."""
        facts = self.facts
        lines = {
            "os": facts.os, "kernel": facts.kernel, "architecture": facts.arch, "glibc": facts.glibc,
            "driver": facts.driver, "cuda": facts.cuda, "locale": facts.lang, "timezone": facts.timezone,
        }  # fmt: skip
        lines |= {n: "unlimited" if limit >= NO_LIMIT else str(limit) for n, limit in facts.limits.items()}
        lines |= {f"module {name}": versions or "none" for name, versions in facts.modules.items()}
        if facts.module_tree:
            checksum, _, count = facts.module_tree.partition(" ")
            lines["module tree"] = f"{count} modules, {checksum[:12]}"
        lines |= {path: checksum[:12] or "not readable" for path, checksum in facts.sentinels.items()}
        lines |= {f"cvmfs {path}": f"revision {revision}" for path, revision in facts.revisions.items()}
        lines |= {name: version or "there" for name, version in facts.runtimes.items()}
        lines |= {f"mount {path}": what for path, what in facts.mounts.items()}
        return {name: value for name, value in lines.items() if value}
