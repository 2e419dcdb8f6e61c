"""A thousand machines of EC2, from the request to the end of the last: ``python -m tests.bench.bench_aws``.

First the provider's calls one by one, then the real provider, observer, launcher, store and loop, against the mock of
EC2 in a process of its own. Slurm and the machines' insides are simulated in this process, and their processor time is
left out. For each call or phase: API calls by operation, and processor seconds of burstd, of boto3 in it, and of the
mock. No root, no network but loopback.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, Instance
from burstd.domain.plugins.provider import LaunchRequest
from burstd.domain.slurm.shape import Shape
from burstd.runtime import logs
from providers.aws.calls import AwsCalls
from providers.aws.provider import AwsProvider
from providers.aws.settings import AwsSettings
from tests.bench.burst import CLUSTER, DaemonBench, LibraryMeter, ProviderBench
from tests.lab.aws.mock import Account, Ec2Mock, policy_for

TYPES = {"c5.large": Decimal("0.10"), "m5.large": Decimal("0.12")}


class MockMeter:
    """An account of the mock."""

    def __init__(self, mock: Ec2Mock, account: Account) -> None:
        self._mock = mock
        self._account = account

    def cpu_s(self) -> float:
        """Of the whole mock."""
        return self._mock.cpu_s()

    def calls(self) -> Counter[str]:
        """The mock's count."""
        return self._mock.calls(self._account)


class TimedCalls(AwsCalls):
    """Knows what boto3 has used."""

    def __init__(self, settings: AwsSettings, library: LibraryMeter) -> None:
        super().__init__(settings)
        self._library = library

    def _call(self, *words: Any, **more: Any) -> Mapping[str, Any]:
        with self._library.counted():
            return super()._call(*words, **more)


def settings_for(mock: Ec2Mock, account: Account, batch: int) -> AwsSettings:
    """Of a site in this account."""
    return AwsSettings(
        region=account.region, endpoint_url=mock.url, subnets=tuple(account.subnets.values()),
        security_groups=(account.security_group,), instance_types=tuple(TYPES), image=account.image,
        prices=TYPES, price_list=False, batch=batch, unused_s=0,
    )  # fmt: skip


def account_for(mock: Ec2Mock) -> Account:
    """A new account, whose user for the cluster boto3 finds."""
    account = mock.account(boot_s=0.5, stop_s=0.5)
    os.environ.update(mock.environment(mock.user(account, CLUSTER, policy_for(CLUSTER))))
    return account


def bench_provider(mock: Ec2Mock, machines: int, batch: int) -> None:
    """The provider's calls without a daemon."""
    account, library = account_for(mock), LibraryMeter()
    settings = settings_for(mock, account, batch)
    provider = AwsProvider("aws", CLUSTER, settings, TimedCalls(settings, library))
    row = ProviderBench(MockMeter(mock, account), library, "boto3", "mock").row
    cheapest, *others = sorted((o for o in row("offers", provider.offers) if not o.spot), key=lambda o: o.price)
    requests = [
        LaunchRequest(
            f"c{n:06}", f"bench-c{n}", cheapest, "", "#cloud-config\n",
            {TAG_CLUSTER: CLUSTER, TAG_CLAIM: f"c{n:06}", "burstd-pool": "cpu"}, tuple(others),
        )
        for n in range(machines)
    ]  # fmt: skip
    prepared = row("prepare", lambda: provider.prepare(requests))
    ready = [request for request in prepared if isinstance(request, LaunchRequest)]
    made = [one.result for one in row("launch", lambda: provider.launch(ready)) if isinstance(one.result, Instance)]
    for _ in range(3):
        row("list", lambda: list(provider.instances()))
    row("leftovers", lambda: list(provider.leftovers()))
    row("terminate", lambda: provider.terminate([one.id for one in made]))
    provider.close()


def bench_daemon(mock: Ec2Mock, machines: int, batch: int, quiet_s: float) -> None:
    """The same with the daemon's loop."""
    account = account_for(mock)
    settings = settings_for(mock, account, batch)
    provider = AwsProvider("aws", CLUSTER, settings, AwsCalls(settings))
    shape = Shape(2, 3000, (), frozenset({"cloud"}))
    with tempfile.TemporaryDirectory(prefix="burstd-bench-") as folder:
        bench = DaemonBench(provider, MockMeter(mock, account), Path(folder), machines, shape)
        try:
            bench.run(quiet_s, "boto3", "mock")
        finally:
            bench.close()


def main() -> None:
    """Runs the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_aws", description=__doc__)
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--quiet", type=float, default=30.0, help="seconds that the jobs run")
    arguments = parser.parse_args()
    logs.set_up("text", "error")
    gc.freeze()  # as the daemon does
    with Ec2Mock() as mock:
        bench_provider(mock, arguments.machines, arguments.batch)
    sys.stdout.write("\n")
    with Ec2Mock() as mock:
        bench_daemon(mock, arguments.machines, arguments.batch, arguments.quiet)


if __name__ == "__main__":
    main()
