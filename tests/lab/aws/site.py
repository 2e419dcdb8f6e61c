"""A whole site whose cloud is the mock of EC2, with boxes behind its instances: ``with AwsSite() as site: ...``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.slurm.shape import Gres, Shape
from tests.lab.aws.mock import Account, Ec2Mock, policy_for
from tests.lab.base_site import BaseSite
from tests.node.conftest import on_network

_PORT = 8480
CPU = Pool(
    "cpu", ("cpu1", "cpu2", "cpu3"), ("burst",), Shape(2, 1000, (), frozenset({"cloud"})),
    (OfferRule("aws", ("c5.large",)),),
)  # fmt: skip
GPU = Pool(
    "gpu", ("gpu1", "gpu2"), ("burst",), Shape(2, 1000, (Gres("gpu", "t4", 1),), frozenset({"cloud", "t4"})),
    (OfferRule("aws", ("g4dn.*",)),),
)  # fmt: skip
PRICES = {"c5.large": "0.10", "g4dn.xlarge": "0.60"}
"""Of an hour on demand, made up; a third of it as spot."""


class AwsSite(BaseSite):
    """One site. ``prices`` say which instance types there are; ``aws`` are more keys of ``[providers.aws]``. AMIs whose
    name ends with ``-BUILD``, one of ``builds``, have its layers between Debian and what the site adds.

    burstd on the head has the rights of config/aws/iam-policy.json and no others, by keys in root's home.
    """

    def __init__(
        self,
        release: str = "bookworm",
        *,
        pools: Sequence[Pool] = (CPU, GPU),
        prices: Mapping[str, str] = PRICES,
        aws: Mapping[str, object] | None = None,
        builds: Mapping[str, Sequence[Path]] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(release, pools=pools, **more)
        self._prices = prices
        self._builds = builds or {}
        self._aws = {"settle_s": 3.0, "unused_s": 3.0, "price_list": False, **(aws or {})}
        self.mock: Ec2Mock
        self.account: Account
        self._ec2: Any = None

    def start_cloud(self, layers: Sequence[Path]) -> None:
        """Starts the mock at the hub's address, with boxes behind it, and an account in it."""
        lab = self.cluster.lab
        config = self.cluster.state / "ec2.json"
        words = {
            "state": str(lab.state),
            "layers": [str(layer) for layer in layers],
            "builds": {
                name: [str(one) for one in (*layers[:-1], *between, layers[-1])]
                for name, between in self._builds.items()
            },
        }
        config.write_text(json.dumps(words), encoding="utf-8")
        more = ["--machines", "tests.lab.aws.boxes:boxes", "--machines-config", str(config)]
        network = lab.network
        log = self.cluster.state / "ec2.log"
        self.mock = Ec2Mock(host=network.gateway, port=_PORT, prefix=network.enter(), words=more, log=log)
        self.mock.start()
        with self.reach():
            self.account = self.mock.account(boot_s=0.5, stop_s=0.5)
            user = self.mock.user(self.account, "lab", policy_for("lab"))
        keys = f"aws_access_key_id = {user.access_key}\naws_secret_access_key = {user.secret_key}\n"
        self.write("/root/.aws/credentials", f"[default]\n{keys}", 0o600)

    def stop_cloud(self) -> None:
        """Ends the mock, and its boxes with it."""
        if hasattr(self, "mock"):
            self.mock.stop()

    def provider_toml(self) -> str:
        """The section of burstd.toml."""
        account = self.account
        settings = {
            "kind": "aws",
            "region": account.region,
            "endpoint_url": self.mock.url,
            "subnets": list(account.subnets.values()),
            "security_groups": [account.security_group],
            "image": account.image,
            "instance_types": list(self._prices),
            **self._aws,
        }
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        prices = "".join(f'"{name}" = "{price}"\n' for name, price in self._prices.items())
        spot = "".join(f'"{name}" = "{float(price) / 3:.4f}"\n' for name, price in self._prices.items())
        return f"[providers.aws]\n{lines}[providers.aws.prices]\n{prices}[providers.aws.spot_prices]\n{spot}"

    def rules_of(self, pool: Pool) -> Sequence[OfferRule]:
        """Every type."""
        del pool
        return (OfferRule("aws"),)

    @contextmanager
    def reach(self) -> Iterator[None]:
        """This thread reaches the mock meanwhile, and the instances."""
        with on_network(self.cluster.lab.network.hub or ""):
            yield

    @contextmanager
    def ec2(self) -> Iterator[Any]:
        """A client of EC2 with the rights of the account's owner."""
        with self.reach():
            if self._ec2 is None:
                self._ec2 = boto3.client("ec2", **self.mock.client_words(self.account))
            yield self._ec2

    def register_image(self, name: str, number: int) -> str:
        """An AMI of the account's own, newer than those of lower numbers; its id."""
        with self.reach():
            return self.mock.register_image(self.account, name, f"2026-03-01T{number:02}:00:00")

    def faults(self, **words: Any) -> None:
        """Arms faults of the mock."""
        with self.reach():
            self.mock.faults(self.account, **words)

    def calls(self) -> Counter[str]:
        """Calls so far, by action."""
        with self.reach():
            return self.mock.calls(self.account)

    def interrupt(self, instance_id: str, notice_s: float) -> None:
        """EC2 takes a spot instance back, and tells only the instance."""
        with self.reach():
            self.mock.interrupt(self.account, [instance_id], notice_s=notice_s, queue=False)

    def instances(self) -> list[str]:
        """Ids of our cluster's instances that are not terminated."""
        states = ["pending", "running", "shutting-down"]
        filters = [{"Name": "tag:burstd-cluster", "Values": ["lab"]}, {"Name": "instance-state-name", "Values": states}]
        with self.ec2() as ec2:
            found = ec2.describe_instances(Filters=filters)["Reservations"]
        return [one["InstanceId"] for reservation in found for one in reservation["Instances"]]
