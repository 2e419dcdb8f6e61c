"""The sandbox's self-check finds what would fail the first launch, and says what to do, word for word."""

from __future__ import annotations

from decimal import Decimal

import pytest

from burstd.domain.plugins.provider import Finding, SelfCheck
from providers.sandbox.client import DirectApi, HttpApi
from providers.sandbox.cloud.cloud import SandboxCloud
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from providers.sandbox.cloud.inventory.catalog import SandboxCatalog, SandboxInstanceType
from providers.sandbox.cloud.inventory.resources import SandboxLaunchRequest
from providers.sandbox.provider import SandboxProvider
from tests.contract.test_sandbox_provider import NoBoxes

C2 = SandboxInstanceType("c2", 2, 2048, Decimal("0.40"))
AGAIN = "systemctl restart burstd-sandbox"
NOT_LOOKED_AT = Finding("all else", None, "not looked at: it takes the sandbox's server")


def found(cloud: SandboxCloud, *images: str) -> dict[str, Finding]:
    provider = SandboxProvider("sandbox", "ada", DirectApi(cloud), image="debian", url="http://10.77.0.1:8470")
    assert isinstance(provider, SelfCheck)
    return {finding.subject: finding for finding in provider.check(images)}


def cloud(faults: dict[str, str] | None = None, **changes: object) -> SandboxCloud:
    settings = {"types": (C2,), "capacity": {"here": {"c2": 4}}, "addresses": "10.77.64.0/30"} | changes
    catalog = SandboxCatalog(**settings)  # type: ignore[arg-type]
    return SandboxCloud(catalog, lambda: 0.0, NoBoxes(), image_fault=lambda image: (faults or {}).get(image, ""))


def test_where_all_is_well() -> None:
    assert list(found(cloud()).values()) == [
        Finding("server", True, "http://10.77.0.1:8470 answers"),
        Finding("image debian", True, "is there"),
        Finding("types", True, "c2 are sold"),
        Finding("instances", True, "0 of 20 instances"),
        Finding("addresses", True, "2 are free"),
    ]


@pytest.mark.parametrize(
    ("there", "text", "remedy"),
    [
        (
            cloud(images=frozenset({"node"})),
            "there is no such image",
            "mend image of the provider's table; the sandbox has node",
        ),
        (
            cloud({"debian": "no folder /var/cache/burstd/rootfs/x"}),
            "it cannot be used: no folder /var/cache/burstd/rootfs/x",
            f"{AGAIN}, which builds root file systems that are missing",
        ),
    ],
)
def test_images(there: SandboxCloud, text: str, remedy: str) -> None:
    assert found(there)["image debian"] == Finding("image debian", False, text, remedy)


def test_an_image_that_a_pool_names() -> None:
    wanted = Finding(
        "image cuda", False, "there is no such image", "mend image in the pools' offers; the sandbox has debian"
    )
    assert found(cloud(), "cuda")["image cuda"] == wanted


def test_what_is_used_up() -> None:
    full = cloud(quota=2)
    for number in range(2):
        full.launch(SandboxLaunchRequest(f"t{number}", f"n{number}", "here", "c2", "debian"))
    said = found(full)
    assert said["instances"] == Finding(
        "instances", None, "2 of 2 instances: all are taken now", "end some, or raise quota"
    )
    widen = f"end instances, or widen addresses in [cloud] of the sandbox's own settings, and {AGAIN}"
    assert said["addresses"] == Finding("addresses", False, "none is free", widen)
    raise_it = f"raise quota in [cloud] of the sandbox's own settings, and {AGAIN}"
    assert found(cloud(quota=0))["instances"] == Finding("instances", False, "0 of 0 instances", raise_it)
    add = f"add [cloud.capacity] to the sandbox's own settings, and {AGAIN}"
    assert found(cloud(capacity={}))["types"] == Finding("types", False, "nothing is sold", add)


def test_a_server_that_does_not_answer_or_let_burstd_in() -> None:
    api = HttpApi("http://127.0.0.1:9", None, 1.0)
    server, rest = SandboxProvider("sandbox", "ada", api).check(())
    assert (server.ok, rest) == (False, NOT_LOOKED_AT)
    assert server.text.startswith("http://127.0.0.1:9/v1/ cannot be reached: ")
    assert server.remedy == f"{AGAIN}, or correct url; 'journalctl -u burstd-sandbox' says what is wrong"
    closed = cloud()
    closed.inject_fault(SandboxFault(FaultKind.AUTH, calls=("supplies",), count=1))
    token = "set token_file to a file with the sandbox's token, which burstd's user can read"
    assert list(found(closed).values()) == [Finding("server", False, "the token is not accepted", token), NOT_LOOKED_AT]
