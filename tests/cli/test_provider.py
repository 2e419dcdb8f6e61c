"""burstctl provider: what people read, and a check without a daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from burstd.domain.command import ForgetMachines
from burstd.domain.machine_outcomes import BadPlaces, PlaceRecord
from burstd.domain.plugins.provider import Finding, ProviderPlugin
from burstd.domain.snapshot import CircuitBreaker
from burstd.settings import PluginRegistry
from tests.api.client import ME, ApiTestClient
from tests.api.fake_backend import PLAN, FakeBackend
from tests.api.test_providers import RICH
from tests.api.world import CLOUDS, G4, SNAPSHOT

from .conftest import Run

LIST = """\
PROVIDER         LISTED  INSTANCES  OFFERS  TYPES  ZONES  POOLS
sandbox   ok    2 s ago  6 running       3      3  a, b   gpu, cpu
sky       down    never  none            0      0         gpu
  sandbox/local/b/g8/on-demand: circuit breaker open for 4 min after 3 failures (capacity: zone b has no g8)
  ! sky: instances cannot be read: no answer
  ! sky: offers cannot be read: no answer from keystone within 10 s
"""
CHECK = f"""\
Provider sky, checked by burstd as user {ME}:
ok      credentials: user burstd of account 7
not ok  quota: room for no machine
        Remedy: ask for more
?       terminate: no machine to try it on
1 thing not ok, 1 thing could not be checked.
"""


def test_the_clouds(run: Run) -> None:
    outcome = run("provider", "list")
    assert (outcome.out, outcome.code) == (LIST, 0)


def test_offers_cheapest_first_and_what_keeps_one_away(run: Run) -> None:
    lines = [line.split() for line in run("provider", "offers", "sandbox").out.splitlines()]
    assert lines[0] == ["TYPE", "ZONE", "MARKET", "CPUS", "MEMORY", "GPUS", "PRICE/H", "FOR"]
    assert lines[1] == ["c4", "a", "on-demand", "4", "15.6", "GiB", "0.2000", "EUR", "cpu"]
    assert " ".join(lines[3][9:]) == "circuit breaker open for 4 min after 3 failures (capacity: zone b has no g8)"


def test_a_place_that_is_avoided(run: Run, backend: FakeBackend) -> None:
    record = PlaceRecord(9, 4, 56, 44, too_bad=True)
    backend.loop = (replace(SNAPSHOT, places={G4.place: record}), PLAN)
    lines = run("provider", "offers", "sandbox").out.splitlines()
    assert lines[0].split()[-2:] == ["BAD", "FOR"]
    assert lines[2].endswith("  4 of 9  gpu, cpu, after others")
    assert lines[-1].strip() == f"g4 in a: {record}"
    refused = replace(record, bad_places=BadPlaces.REFUSE)
    noted = f"  {G4.place}: avoided, {record}\n"
    for words in ("provider list", "status"):
        assert noted in run(*words.split()).out
    backend.loop = (replace(SNAPSHOT, places={G4.place: refused}), PLAN)
    assert "no pool, too many machines were bad" in run("provider", "offers", "sandbox").out
    outcome = run("provider", "forget", "sandbox", "--type", "g4")
    assert (outcome.code, backend.commands[-1]) == (0, ForgetMachines((G4.place,), f"user:{ME}"))


def test_an_offer_with_all_that_is_known_of_it(run: Run, backend: FakeBackend) -> None:
    cloud = replace(CLOUDS["sandbox"], offers=(RICH, G4))
    backend.loop = (replace(SNAPSHOT, clouds={**CLOUDS, "sandbox": cloud}), PLAN)
    out = run("provider", "offers", "sandbox", "--all").out
    assert "v100:4 (32 GiB)  x86_64  efa     900 GiB  2.5000 USD  spot history, 90 s ago, 0.005 of it for its" in out
    assert "its address  no pool names it" in out
    assert "and 1 offer that no pool can use (--all)" in run("provider", "offers", "sandbox").out
    narrow = run("provider", "offers", "sandbox", "--all", columns=60).out
    assert "g16 a spot\n  cpus 8, memory 64 GiB, gpus v100:4 (32 GiB), arch x86_64," in narrow
    assert max(map(len, narrow.splitlines())) <= 60


def test_an_offer_waits_where_a_pool_has_nodes_elsewhere_or_its_own_check_failed(
    run: Run, backend: FakeBackend
) -> None:
    other = replace(G4, zone="b")
    bound = replace(SNAPSHOT.pools["gpu"], fabric="ib")
    failed = CircuitBreaker("sandbox/local/a/g4/*/cpu", "fabric_test", 1, SNAPSHOT.now + 240, "no ib_write_bw")
    cloud = replace(CLOUDS["sandbox"], offers=(G4, other))
    backend.loop = (
        replace(
            SNAPSHOT,
            clouds={**CLOUDS, "sandbox": cloud},
            pools={**SNAPSHOT.pools, "gpu": bound},
            breakers=(failed,),
        ),
        PLAN,
    )
    here, there = run("provider", "offers", "sandbox").out.splitlines()[1:]
    assert here.split()[1] == "a"
    assert "gpu; waits: pool cpu: failed 1 time(s) (fabric_test: no ib_write_bw)" in here
    assert there.split()[1] == "b"
    assert there.endswith("cpu; waits: pool gpu: the pool has nodes, with their fabric, in sandbox/local/a")


def test_offers_that_cannot_be_read(run: Run) -> None:
    outcome = run("provider", "offers", "sky")
    assert (outcome.code, outcome.out) == (
        3, "down The offers of sky cannot be read: no answer from keystone within 10 s; last known 5 min ago\n"
    )  # fmt: skip
    outcome = run("provider", "offers", "sky", "--json")
    assert (outcome.code, json.loads(outcome.out)["ok"]) == (3, False)


def test_what_the_daemon_found(run: Run, backend: FakeBackend) -> None:
    outcome = run("provider", "check", "sky")
    assert (outcome.out, outcome.code) == (CHECK, 1)
    backend.checks.findings = backend.checks.findings[:1] + backend.checks.findings[2:]
    outcome = run("provider", "check", "sky")
    assert outcome.out.endswith("No fault found, 1 thing could not be checked.\n")
    assert outcome.code == 0
    assert run("provider", "check", "moon").code == 5
    outcome = run("provider", "check", "sandbox")
    assert (outcome.code, "has no self-check" in outcome.err) == (1, True)


@pytest.mark.parametrize(
    ("words", "path"),
    [("provider list", "/v1/providers"), ("provider offers sandbox --all", "/v1/providers/sandbox/offers?all=true")],
)
def test_json_is_the_answer_itself(run: Run, control: Path, words: str, path: str) -> None:
    with ApiTestClient(control) as client:
        assert json.loads(run(*words.split(), "--json").out) == client.get(path)
    answer = json.loads(run("provider", "check", "sky", "--json").out)
    assert (answer["ok"], len(answer["findings"])) == (False, 3)


class MoonSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    region: str


class Moon:
    """Says with which settings and images it was asked."""

    def __init__(self, name: str, cluster: str, settings: MoonSettings) -> None:
        self.description = f"{name} of {cluster} in {settings.region}"
        self.closed = False

    def check(self, images: Sequence[str]) -> Iterator[Finding]:
        yield Finding("settings", True, self.description)
        yield Finding("images", not images, ", ".join(images), "name another image")

    def close(self) -> None:
        self.closed = True


SETTINGS = """
cluster = "ada"
[providers.moon]
kind = "moon"
region = "crater"
[providers.broken]
kind = "moon"
[pools.gpu]
nodes = "gpu[1-2]"
partitions = ["burst"]
cpus = 8
memory = "1G"
offers = [{ provider = "moon", image = "basalt" }, { provider = "broken", image = "other" }]
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "burstd.toml"
    file.write_text(SETTINGS, encoding="utf-8")
    plugin: Any = ProviderPlugin("moon", MoonSettings, Moon)  # type: ignore[arg-type]
    monkeypatch.setattr(PluginRegistry, "installed", lambda: PluginRegistry({"providers": {"moon": lambda: plugin}}))
    return file


@pytest.mark.parametrize("words", [["--here"], []])
def test_before_the_first_start_burstctl_looks_itself(
    run: Run, settings: Path, tmp_path: Path, words: list[str]
) -> None:
    """With ``--here``, or because no daemon runs."""
    absent = None if words else tmp_path / "none.sock"
    outcome = run("provider", "check", "moon", *words, "--config", str(settings), socket=absent)
    assert outcome.out == (
        f"Provider moon, checked by burstctl itself, from {settings} as user {ME}:\n"
        "ok      settings: moon of ada in crater\n"
        "not ok  images: basalt\n"
        "        Remedy: name another image\n"
        "1 thing not ok.\n"
    )
    assert outcome.code == 1


def test_what_is_wrong_with_the_settings_is_said(run: Run, settings: Path) -> None:
    outcome = run("provider", "check", "broken", "--here", "--config", str(settings))
    assert (outcome.code, "providers.broken.region: must be set" in outcome.err) == (1, True)
    outcome = run("provider", "check", "mars", "--here", "--config", str(settings))
    assert (outcome.code, "there are: moon, broken" in outcome.err) == (5, True)
