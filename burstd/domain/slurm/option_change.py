"""A change of one option with which a waiting job would start."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class OptionChange:
    """What to ask for instead, and what would come of it."""

    before: str
    """As sbatch has it: ``-C a100``."""
    after: str
    """``-C 'a100|v100'``; ``no -C`` where it is to be left out."""
    command: str
    """What changes the job that waits, for its owner; empty: it must be submitted anew."""
    start_s: float
    """From now until it would start, in seconds; 0: at once."""
    where: tuple[str, ...]
    """Nodes that it would start on."""
    offer: str = ""
    """Offer.id of new machines; empty: none is started."""
    price: Decimal | None = None
    """Of all new machines, for an hour."""
    currency: str = ""
