"""What each part of the loop works with: made once, when burstd starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from burstd.db import Store
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.plugins.provider import Provider
from burstd.domain.plugins.scheduler import Scheduler
from burstd.domain.plugins.validator import NodeValidator
from burstd.reconciler.quarantine import Quarantine
from burstd.runtime.workers import Workers


@dataclass(slots=True)
class PollIntervals:
    """Intervals of all pollers, in seconds; one object for all, which a reload replaces."""

    tick_s: float = 15.0
    """A loop at least this often."""
    poll_s: float = 2.0
    """The queue, where Slurm's state directory cannot be watched."""
    slurm_fast_s: float = 0.4
    """The queue and the nodes, while a node is about to register or a bound job to start."""
    cloud_poll_s: float = 15.0
    cloud_fast_s: float = 1.0
    """While something of the provider's is about to change."""
    sweep_polls: float = 4.0
    """Leftovers are looked for at every so many polls of the cloud, ..."""
    sweep_fast_s: float = 2.0
    """... and so often while some are waited for."""
    offers_s: float = 300.0
    notices_s: float = 5.0
    """The queues of notices and, where Slurm's state directory is watched, the nodes, while there are spot machines."""
    notices_idle_s: float = 60.0
    image_polls: float = 4.0
    """The versions of images, where a cloud has them, at every so many polls of the cloud."""
    life_sign_s: float = 0.0
    """burstd's sign of life for its machines; 0: none is given."""
    validation_retry_s: float = 0.5
    call_retry_s: float = 2.0
    """First pause before a failed call is repeated; doubles to a minute."""


@dataclass(frozen=True, slots=True)
class LoopContext:
    """The outside world and the settings that hold for the whole loop."""

    cluster: str
    store: Store
    scheduler: Scheduler
    providers: Mapping[str, Provider]
    validator: NodeValidator
    workers: Workers
    clock: Clock
    intervals: PollIntervals
    quarantine: Quarantine
    user_data: Callable[[Pool, str], str]
    """Renders the user data of a pool's machines at a provider."""
    new_id: Callable[[], str]
    """Makes the id of a new claim."""
    is_authentic: Callable[[str], bool]
    """True for an id that ``new_id`` made, in this process or an earlier one."""
