"""Cluster placement groups: the machines of one job of many nodes close to each other."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from burstd.domain.cloud.instance import TAG_CLUSTER
from providers.aws import tags
from providers.aws.calls import AwsCalls
from providers.aws.errors import AwsAlreadyExists
from providers.aws.settings import AwsSettings

TAG_GANG = "burstd-gang"
TAG_MADE = "burstd-made"
"""Seconds since 1970: Amazon does not say how old a placement group is."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def group_name(cluster: str, gang: str) -> str:
    """The name of the group of this gang: letters that Amazon and filters take."""
    return f"burstd-{cluster}-{_UNSAFE.sub('-', gang)}"


class PlacementGroups:
    """Those of one cluster, as far as this process has made them."""

    def __init__(
        self,
        cluster: str,
        settings: AwsSettings,
        calls: AwsCalls,
        clock: Callable[[], float] = time.monotonic,
        date: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._clock = clock
        self._date = date
        self._lock = threading.Lock()
        self._used: dict[str, float] = {}

    def ensure(self, gang: str) -> None:
        """Makes the group of this gang, unless it is there."""
        wanted = group_name(self._cluster, gang)
        now = self._clock()
        with self._lock:
            if now >= self._used.get(wanted, float("-inf")) + self._settings.unused_s:
                with suppress(AwsAlreadyExists):
                    self._make(wanted, gang)
            self._used[wanted] = now

    def forget(self, gang: str) -> None:
        """It is not there after all."""
        self._used.pop(group_name(self._cluster, gang), None)

    def _make(self, wanted: str, gang: str) -> None:
        group_tags = {
            **self._settings.tags,
            TAG_CLUSTER: self._cluster,
            TAG_GANG: gang,
            TAG_MADE: str(int(self._date())),
        }
        self._calls.mutate(
            "ec2", "create_placement_group", GroupName=wanted, Strategy="cluster",
            TagSpecifications=tags.specifications(group_tags, "placement-group"),
        )  # fmt: skip
