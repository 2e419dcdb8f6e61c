"""The fault switch of one account: what goes wrong next, and how often.

Armed by ``POST /_lab/faults``; the keys are those of ``Faults.arm``. All times in seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape


class MockRefused(Exception):
    """An error answer as EC2 words it. See the "Error codes" page of the EC2 API reference."""

    def __init__(self, code: str, text: str, status: int = 400) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text, self.status = code, text, status

    def xml(self) -> str:
        """As EC2 answers it."""
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
            f"<Code>{self.code}</Code><Message>{escape(self.text)}</Message>"
            "</Error></Errors><RequestID>00000000-0000-0000-0000-000000000000</RequestID></Response>"
        )

    def json(self) -> str:
        """As services that speak JSON answer it."""
        return json.dumps({"__type": self.code, "message": self.text, "Message": self.text})


class Cut(Exception):
    """The connection ends without an answer, though the call was carried out."""


@dataclass
class Counted:
    """Something that happens to the next calls of an action (``*``: any)."""

    action: str
    times: int = 1
    skip: int = 0
    """Calls that pass before it begins."""
    paged: bool = False
    """Only calls for a later page count."""
    code: str = "InternalError"
    text: str = "An internal error has occurred"
    status: int = 500

    def takes(self, action: str, later_page: bool) -> bool:
        """Whether this call is one of them; counts it."""
        if self.times <= 0 or self.action not in ("*", action) or (self.paged and not later_page):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass
class Faults:
    """What is armed."""

    refuse: list[Counted] = field(default_factory=list)
    """Nothing is done; the answer is the error."""
    lost: list[Counted] = field(default_factory=list)
    """It is done; code ``cut`` ends the connection, any other is the answer in place of the true one."""
    fleet: list[Counted] = field(default_factory=list)
    """The next fleets come out empty, with this error for every override."""
    ice: set[str] = field(default_factory=set)
    """``TYPE`` or ``TYPE@ZONE`` without capacity."""
    cap: dict[str, int] = field(default_factory=dict)
    """``TYPE`` or ``TYPE@ZONE`` -> how many more can be had."""
    short: int = 0
    """The next launch gets that many fewer than it asks for."""
    hide_s: float = 0.0
    """How long a new instance is not found and not listed."""
    noip_s: float = 0.0
    """How long a new instance shows no private address."""
    leak: dict[str, int] = field(default_factory=dict)
    """``volume``, ``network-interface`` or ``spot-instances-request`` -> how many ended instances leave theirs."""
    protect: int = 0
    """The first instance named in that many next TerminateInstances calls may not be ended: the call is refused whole.
    It is free again when a call named it alone and was refused, or left it out."""
    protected: set[str] = field(default_factory=set)

    def arm(self, words: Mapping[str, Any]) -> None:
        """Adds to what is armed: lists and counts add up, other values replace."""
        for key, value in words.items():
            if key in ("refuse", "lost", "fleet"):
                getattr(self, key).extend(Counted(**one) for one in value)
            elif key == "ice":
                self.ice.update(value)
            elif key in ("cap", "leak"):
                getattr(self, key).update(value)
            elif key in ("short", "hide_s", "noip_s", "protect"):
                setattr(self, key, value)
            else:
                raise ValueError(f"the fault switch has no key {key!r}")

    def before(self, action: str, later_page: bool) -> None:
        """Raises where this call is refused."""
        for one in self.refuse:
            if one.takes(action, later_page):
                raise MockRefused(one.code, one.text, one.status)

    def after(self, action: str) -> None:
        """Raises where the answer of this call is lost."""
        for one in self.lost:
            if one.takes(action, later_page=False):
                if one.code == "cut":
                    raise Cut
                raise MockRefused(one.code, one.text, one.status)

    def empties_fleet(self) -> Counted | None:
        """The error of a fleet that comes out empty."""
        return next((one for one in self.fleet if one.takes("CreateFleet", later_page=False)), None)

    def available(self, instance_type: str, zone: str, wanted: int) -> int:
        """How many of them can be had in the zone."""
        here = f"{instance_type}@{zone}"
        if self.ice & {instance_type, here}:
            return 0
        return max(0, min([wanted, *(self.cap[key] for key in (instance_type, here) if key in self.cap)]))

    def took(self, instance_type: str, zone: str, count: int) -> None:
        """Counts what was given."""
        for key in (instance_type, f"{instance_type}@{zone}"):
            if key in self.cap:
                self.cap[key] -= count

    def shortens(self) -> int:
        """By how much this launch falls short; once."""
        short, self.short = self.short, 0
        return short

    def leaks(self, kind: str) -> bool:
        """Whether this ending instance leaves its thing of that kind; counts it."""
        if self.leak.get(kind, 0) <= 0:
            return False
        self.leak[kind] -= 1
        return True

    def forbids_end(self, ids: list[str]) -> None:
        """Raises where an instance among these may not be ended."""
        if self.protect > 0 and ids:
            self.protect -= 1
            self.protected.add(ids[0])
        for one in sorted(self.protected):
            if one not in ids or ids == [one]:
                self.protected.discard(one)
            if one in ids:
                raise MockRefused(
                    "OperationNotPermitted",
                    f"The instance '{one}' may not be terminated. Modify its 'disableApiTermination' instance"
                    " attribute and try again.",
                )
