"""The mock as a world of the providers' contract: one account, a user for each cluster, burstd's own policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import botocore.loaders
import botocore.retries.bucket
import botocore.retries.standard
import pytest

from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.provider import Provider
from burstd.testing.cloud_world import Breakage, FaultWorld
from providers.aws.calls import _READ_ATTEMPTS, AwsCalls
from providers.aws.provider import AwsProvider
from providers.aws.settings import AwsSettings
from tests.lab.aws.mock import DOWN, THROTTLED, Ec2Mock, User, volumes_policy_for

TYPES = ("c5.large", "m5.large")
_PATIENCE_S = 10.0
_LAUNCHES = ("CreateFleet", "RunInstances")
_LOADER = botocore.loaders.Loader()


class AwsWorld(FaultWorld):
    """An account that no other test knows. Credentials come by boto3's own chain, as they do on a site."""

    page = 5
    """The fewest that EC2 takes."""

    def __init__(self, mock: Ec2Mock, folder: Path, patch: pytest.MonkeyPatch, *, policy: bool = True) -> None:
        self.mock = mock
        self.account = mock.account()
        self.image = self.account.image
        self._policy = policy
        self._credentials = folder / "credentials"
        self._users: dict[str, User] = {}
        self._providers: list[Provider] = []
        self._images = 0
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(self._credentials))
        patch.setenv("AWS_CONFIG_FILE", str(folder / "none"))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
            patch.delenv(name, raising=False)
        # The same repeats as ever, without the waiting in between.
        patch.setattr(botocore.retries.standard.ExponentialBackoff, "delay_amount", lambda *_: 0.0)
        patch.setattr(botocore.retries.bucket.TokenBucket, "acquire", lambda *_, **__: True)
        patch.setattr(boto3, "Session", _session)

    def provider(self, cluster: str, **words: Any) -> AwsProvider:
        user = self.user(cluster)
        account = self.account
        settings = {
            "region": account.region, "profile": cluster, "endpoint_url": self.mock.url,
            "subnets": list(account.subnets.values()), "security_groups": [account.security_group],
            "instance_profile": user.role, "instance_types": list(TYPES), "notices_queue": user.queue,
            "image": account.image, "page": self.page, **words,
        }  # fmt: skip
        read = AwsSettings.model_validate(settings)
        made = AwsProvider("aws", cluster, read, AwsCalls(read))
        self._providers.append(made)
        return made

    def user(self, cluster: str) -> User:
        """The cluster's own; made when it is first asked for."""
        if cluster not in self._users:
            policy = volumes_policy_for(cluster) if self._policy else None
            user = self._users[cluster] = self.mock.user(self.account, cluster, policy)
            keys = f"aws_access_key_id = {user.access_key}\naws_secret_access_key = {user.secret_key}\n"
            with self._credentials.open("a", encoding="utf-8") as file:
                file.write(f"[{cluster}]\n{keys}\n")
        return self._users[cluster]

    def publish_image(self) -> tuple[str, str]:
        self._images += 1
        created = f"2026-02-01T00:{self._images:02}:00"
        return "name:roll-*", self.mock.register_image(self.account, f"roll-{self._images}", created)

    def withdraw_image(self, version: str) -> None:
        boto3.client("ec2", **self.mock.client_words(self.account)).deregister_image(ImageId=version)

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not condition():
            assert time.monotonic() < end, "the mock never got there"
            time.sleep(0.01)

    def calls(self) -> int:
        return self.mock.calls(self.account).total()

    def user_data(self, instance_id: str) -> str:
        return self.mock.user_data(self.account, instance_id)

    def offer(self, provider: Provider) -> Offer:
        return self.offers(provider)[0]

    def offers(self, provider: Provider, *, spot: bool = False) -> list[Offer]:
        """One market's, by type and zone."""
        found = [one for one in provider.offers() if one.spot is spot]
        return sorted(found, key=lambda one: (one.instance_type, one.zone))

    def refuse(self, action: str, code: str, status: int = 400, **words: Any) -> None:
        """See ``Ec2Mock.refuse``."""
        self.mock.refuse(self.account, action, code, "as the test has it", status, **words)

    def inject_fault(self, how: Breakage) -> None:
        mock, account = self.mock, self.account
        if how is Breakage.CAPACITY:
            mock.faults(account, short=1)
        elif how is Breakage.QUOTA:
            self.empty_fleet("VcpuLimitExceeded")
        elif how is Breakage.IMAGE:
            self.empty_fleet("InvalidAMIID.NotFound")
        elif how is Breakage.RATE:
            mock.refuse(account, "CreateFleet", **THROTTLED)
        elif how is Breakage.AUTH:
            self.refuse("CreateFleet", "AuthFailure", 401)
        elif how is Breakage.DOWN:
            mock.refuse(account, "CreateFleet", **DOWN)
        elif how is Breakage.LOST:
            mock.faults(account, lost=[{"action": one, "code": "cut"} for one in _LAUNCHES])
        elif how is Breakage.LIST_DOWN:
            mock.refuse(account, "DescribeInstances", **DOWN, times=_READ_ATTEMPTS)
        elif how is Breakage.TERMINATE:
            mock.faults(account, protect=1)
        elif how is Breakage.LEAK:
            mock.faults(account, leak={"volume": 1})

    def empty_fleet(self, code: str, times: int = 1) -> None:
        """The next fleets come out empty, with this error for each override."""
        self.mock.faults(self.account, fleet=[{"action": "CreateFleet", "code": code, "text": code, "times": times}])

    def close(self) -> None:
        """Gives all connections back."""
        for one in self._providers:
            one.close()


def _session(**words: str | None) -> boto3.session.Session:
    """As ever, but that botocore's descriptions of the services are read once, not in every test."""
    made = boto3.session.Session(**words)
    made._session.register_component("data_loader", _LOADER)
    return made
