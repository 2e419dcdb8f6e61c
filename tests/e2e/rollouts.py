"""New versions of an image, for a pool that is kept at so many nodes whatever jobs there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.sites import events
from tests.lab.base_site import BaseSite

ROLL_S = 180.0
"""For a step of a roll-out: burstd looks for versions every 12 s, and other tests go on meanwhile."""


@dataclass(slots=True)
class Rollout:
    """``register_image`` makes an image of a name and a number, and gives its id. ``machines`` gives the image's id of
    each machine that was ever made for the pool, by instance, oldest first.
    """

    site: BaseSite
    provider: str
    pool: str
    register_image: Callable[[str, int], str]
    machines: Callable[[], Mapping[str, str]]
    ids: list[str] = field(default_factory=list)

    def register(self, build: str) -> str:
        """A new image; its id."""
        number = len(self.ids)
        self.ids.append(self.register_image(f"{self.pool}-{number}-{build}", number))
        return self.ids[-1]

    def keep(self, nodes: int) -> None:
        """So many, with or without jobs."""
        self.site.burstctl("scale", self.pool, str(nodes))

    def launched(self) -> list[int]:
        """Of each machine that was ever made, the number of its image."""
        return [self.ids.index(image) for image in self.machines().values()]

    def nodes(self) -> list[int]:
        """Of each node in service, the number of its image."""
        up = [node for node in self.site.api("/v1/nodes")["nodes"] if node["state"] == "in_service"]
        machines = self.machines()
        return sorted(self.ids.index(machines[node["instance"]]) for node in up if node["instance"] in machines)

    def wait(self, *nodes: int) -> None:
        """Until exactly these are in service."""
        self.site.wait(lambda: self.nodes() == list(nodes), ROLL_S, f"nodes of {self.pool} with images {nodes}")

    def is_left_alone(self, number: int) -> bool:
        """Whether the breaker of an image was ever opened."""
        return bool(events(self.site, f"breaker:{self.provider}/image/{self.ids[number]}"))

    def has_made_way(self, old: int, new: int) -> bool:
        """Whether an idle node of the one image was drained for the other."""
        text = f"it runs {self.ids[old]}, and new nodes start from {self.ids[new]}"
        reasons = [one["reason"] for one in events(self.site, "claim:") if one["new"] == "draining"]
        return any(text in reason for reason in reasons)


def broken_build(folder: Path) -> Path:
    """A layer with an slurmd that does not even say its version."""
    program = folder / "usr" / "sbin" / "slurmd"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho slurmd: this build is broken >&2\nexit 1\n", encoding="ascii")
    program.chmod(0o755)
    return folder
