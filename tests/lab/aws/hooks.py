"""What may stand behind the mock's instances: real machines, told of an instance's life as EC2's hosts are.

The server is given ``--machines PACKAGE.MODULE:FUNCTION --machines-config PATH``; it calls ``FUNCTION(PATH, halted)``
once, before it answers anybody, and gets a ``Machines``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

Halted = Callable[[str], None]
"""Tell the mock, by instance id, that a machine has switched itself off: its InstanceInitiatedShutdownBehavior decides
what becomes of the instance. May be called from any thread."""


class Machines(Protocol):
    """Called from the mock's own threads, one call at a time, in the order of what happens; errors are logged there."""

    def running(
        self, instance_id: str, address: str, user_data: bytes, instance_type: str, zone: str, name: str, gpus: int,
        image: str,
    ) -> None:  # fmt: skip
        """The instance is to boot: it is ``running`` from now on, though nothing answers at ``address`` yet.

        ``user_data`` is decoded, empty where there is none; ``name`` is the tag Name, empty where there is none;
        ``image`` is the name of its AMI.
        """
        ...

    def ended(self, instance_id: str) -> None:
        """The instance is shutting down: it is ``terminated`` once this returns. Told for unknown instances too."""
        ...

    def console(self, instance_id: str) -> str:
        """Console output so far; empty at first, and for an instance that is unknown here."""
        ...

    def notice(self, instance_id: str, kind: Literal["interruption", "rebalance"], deadline: float | None) -> None:
        """What the instance's metadata is to say from now on. ``deadline`` in seconds since 1970."""
        ...

    def close(self) -> None:
        """The mock ends: so do all machines."""
        ...


class NoMachines:
    """Nothing behind the instances but a console that says that they booted."""

    def running(
        self, instance_id: str, address: str, user_data: bytes, instance_type: str, zone: str, name: str, gpus: int,
        image: str,
    ) -> None:  # fmt: skip
        """Nothing boots."""

    def ended(self, instance_id: str) -> None:
        """Nothing ends."""

    def console(self, instance_id: str) -> str:
        """The last line of a boot."""
        return f"{instance_id} login: \n"

    def notice(self, instance_id: str, kind: Literal["interruption", "rebalance"], deadline: float | None) -> None:
        """Nobody reads it."""

    def close(self) -> None:
        """Nothing to end."""


def load(where: str, config: Path, halted: Halted) -> Machines:
    """The machines that ``PACKAGE.MODULE:FUNCTION`` makes; none where it is empty."""
    if not where:
        return NoMachines()
    module, _, function = where.partition(":")
    made: Machines = getattr(importlib.import_module(module), function)(config, halted)
    return made
