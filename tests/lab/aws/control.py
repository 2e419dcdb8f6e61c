"""The mock's own requests: accounts, users, faults, counters, interruptions. ``mock.Ec2Mock`` makes them."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from typing import Any

from tests.lab.aws.accounts import Worlds, register_image
from tests.lab.aws.faults import Faults
from tests.lab.aws.life import Life


class Control:
    """Each public method is a request: JSON in as its keywords, JSON out."""

    def __init__(self, worlds: Worlds, life: Life) -> None:
        self._worlds, self._life = worlds, life

    def __call__(self, name: str, body: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
        """Status, headers and body of the answer."""
        work = None if name.startswith("_") else getattr(self, name, None)
        if work is None:
            return "404 Not Found", [], b""
        try:
            said = work(**json.loads(body or b"{}"))
        except (TypeError, ValueError, KeyError) as error:
            return "400 Bad Request", [("Content-Type", "text/plain")], repr(error).encode()
        return "200 OK", [("Content-Type", "application/json")], json.dumps(said).encode()

    def account(self, region: str, boot_s: float, stop_s: float, gone_s: float) -> dict[str, Any]:
        """A new account."""
        return asdict(self._worlds.set_up(region, boot_s, stop_s, gone_s))

    def user(self, account: str, cluster: str, policy: dict[str, Any] | None) -> dict[str, Any]:
        """A user of an account; without a policy it may do everything."""
        return asdict(self._worlds.user(account, cluster, policy))

    def faults(self, account: str, **words: Any) -> None:
        """Arms faults."""
        world = self._worlds.numbered(account)
        with world.lock:
            world.faults.arm(words)

    def clear(self, account: str) -> None:
        """Disarms all."""
        world = self._worlds.numbered(account)
        with world.lock:
            world.faults = Faults()

    def calls(self, account: str) -> dict[str, int]:
        """Calls so far by action; those of other services than EC2 as ``SERVICE:ACTION``."""
        return dict(self._worlds.numbered(account).calls)

    def reserve(self, account: str, instance_type: str, zone: str, count: int, block: bool) -> str:
        """A capacity reservation or capacity block; its id."""
        return self._worlds.numbered(account).reserve(instance_type, zone, count, block=block).id

    def register_image(self, account: str, image_name: str, created: str) -> str:
        """An AMI that was created at this time; its id."""
        world = self._worlds.numbered(account)
        with world.lock:
            return str(register_image(world, image_name, created).id)

    def interrupt(self, account: str, ids: list[str], kind: str, notice_s: float, queue: bool) -> None:
        """EC2 takes spot instances back after so many seconds, or recommends to rebalance."""
        if kind not in ("interruption", "rebalance"):
            raise ValueError(kind)
        world = self._worlds.numbered(account)
        with world.lock:
            for one in ids:
                self._life.warns(world, world.made[one], kind, notice_s, queue=queue)  # type: ignore[arg-type]

    def send(self, account: str, body: str) -> None:
        """Any message into the queues of the account."""
        self._worlds.numbered(account).send(body)

    def user_data(self, account: str, instance_id: str) -> str:
        """In base64, as the instance got it."""
        return base64.b64encode(self._worlds.numbered(account).made[instance_id].user_data).decode()

    def halt(self, account: str, instance_id: str) -> None:
        """The machine switches itself off."""
        world = self._worlds.numbered(account)
        self._life.halted(world, world.made[instance_id])
