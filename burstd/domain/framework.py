"""Sets of software that jobs ask for as a feature of nodes (``sbatch -C pytorch-2.5``)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Framework:
    """Modules, or an image, and what shows that they work."""

    name: str
    """The feature in Slurm."""
    check: str
    """Shell command that ends with 0 where the framework works."""
    modules: tuple[str, ...] = ()
    """Loaded in this order; none: it is in ``image``."""
    image: str = ""
    """Path of an image for Apptainer on the node."""
    limit_s: float = 120.0

    def __str__(self) -> str:
        source = f"image {self.image}" if self.image else f"module load {' '.join(self.modules)}"
        return f"{self.name} ({source})"

    @property
    def checksum(self) -> str:
        """Of all that it is, but the limit."""
        parts = (self.name, self.check, self.image, *self.modules)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
