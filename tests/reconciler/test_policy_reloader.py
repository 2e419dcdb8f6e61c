"""Policies on a running burstd: tried, taken, refused. The reconciler and the record are real, the site is virtual."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from burstd.api.routers.policies import policy_test_view
from burstd.daemon.commands import CommandHandler
from burstd.daemon.settings_in_force import PolicyReloader, load_and_check, runtime_config
from burstd.domain.command import ForgetMachines
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import CircuitBreaker
from burstd.node.validator import SlurmNodeValidator
from burstd.reconciler.policy_guard import copies_for_trial
from burstd.reconciler.reconciler import Reconciler
from tests.crash.clouds import CLUSTER
from tests.crash.world import World
from tests.virtual.job import JobSpec

SETTINGS = """\
cluster = "{cluster}"
[node]
munge_key = "{folder}/munge.key"
[policies]
chain = ["idle", "nights"]
folder = "{folder}/policies"
timeout_s = 1.0
[policies.idle]
keep_alive_s = 60
[providers.alpha]
kind = "sandbox"
token_file = "{folder}/munge.key"
[providers.beta]
kind = "sandbox"
token_file = "{folder}/munge.key"
[pools.cpu]
nodes = "c[1-4]"
partitions = ["burst"]
cpus = 4
memory = 8000
offers = [{{ provider = "alpha", instance_types = ["cpu.*"] }}, {{ provider = "beta", instance_types = ["cpu.*"] }}]
[pools.gpu]
nodes = "g[1-3]"
partitions = ["burst"]
cpus = 4
memory = 8000
gres = "gpu:v100:2"
offers = [{{ provider = "alpha", instance_types = ["gpu.*"] }}, {{ provider = "beta", instance_types = ["gpu.*"] }}]
"""
NIGHTS = """\
from dataclasses import dataclass, replace
from pydantic import BaseModel
from burstd.domain.plugins.policy import PolicyPlugin, remarks_on_dropped_want

class Settings(BaseModel):
    shut: bool = True

@dataclass(frozen=True)
class Nights:
    settings: Settings
    name: str = "nights"

    def evaluate(self, snapshot, target):
        if not self.settings.shut:
            return target
        remarks = [r for w in target.wants for r in remarks_on_dropped_want(w, self.name, "nothing is booted at night")]
        return replace(target, wants=(), remarks=(*target.remarks, *remarks))

plugin = PolicyPlugin("nights", Settings, Nights)
"""


class PolicySite:
    """A virtual site, and burstd's settings and policies on a real disk."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.toml = folder / "burstd.toml"
        self.nights = folder / "policies" / "nights.py"
        self.nights.parent.mkdir(mode=0o755)
        (folder / "munge.key").touch(mode=0o600)
        self.write(self.toml, SETTINGS.format(cluster=CLUSTER, folder=folder))
        self.write(self.nights, NIGHTS)
        ready = load_and_check(self.toml)
        self.reconciler.reload(runtime_config(ready))
        self.reloader = PolicyReloader(ready, self.reconciler, self.world.store)

    @property
    def reconciler(self) -> Reconciler:
        assert self.world.reconciler is not None
        return self.world.reconciler

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o644)

    def change(self, path: Path, old: str, new: str) -> None:
        text = path.read_text()
        assert old in text
        self.write(path, text.replace(old, new))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PolicySite]:
    made = PolicySite(tmp_path)
    yield made
    made.world.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("return target\n", "return target)\n", "nights.py:15: SyntaxError: unmatched ')'"),
        ("class Nights", "class Nights(1)", "nights.py:9: TypeError: "),
        ("plugin = ", "raise SystemExit\nplugin = ", "nights.py:19: SystemExit"),
        ("plugin = ", "while True: pass\nplugin = ", "it took longer than 1 s and was interrupted"),
        ("Nights)", "lambda _: Nights())", "the policy cannot be made: "),
        ('"nights", Settings', '"days", Settings', "there is no policy 'nights'"),
        ("shut: bool", "shut: int", "policies.nights.shut: must be a whole number"),
    ],
)
def test_a_reload_of_a_broken_module_changes_nothing(site: PolicySite, old: str, new: str, says: str) -> None:
    world = site.world
    site.change(site.toml, "[policies.idle]", "[policies.nights]\nshut = true\n[policies.idle]")
    assert site.reloader.reload("user:root").done
    job = world.slurm.submit(JobSpec(run_s=60))
    world.run(120)
    before, modules = site.reconciler.config, {n for n in sys.modules if n.startswith("_burstd_policies")}
    site.change(site.nights, old, new)
    site.change(site.toml, "keep_alive_s = 60", "keep_alive_s = 1")
    if "shut: int" in new:
        site.change(site.toml, "shut = true", "shut = 'x'")
    result = site.reloader.reload("user:root")
    assert (result.done, result.changed) == (False, False)
    assert says in result.text
    assert site.reconciler.config is before
    assert {n for n in sys.modules if n.startswith("_burstd_policies")} == modules
    assert [state.name for state in site.reloader.policies_view(0.0).policies[:2]] == ["idle", "nights"]
    # The old one goes on with its work.
    world.run(300)
    assert (world.states(job), world.claims(), site.reconciler.alarm) == ([JobState.PENDING], (), "")
    site.write(site.nights, NIGHTS.replace("= True", "= False"))
    site.change(site.toml, "shut = true" if "shut: int" not in new else "shut = 'x'", "shut = false")
    assert site.reloader.reload("user:root").done
    world.run(300)
    assert world.states(job) == [JobState.COMPLETED]


def test_what_those_on_disk_would_decide_is_told_and_not_done(site: PolicySite) -> None:
    world = site.world
    world.slurm.submit(JobSpec(run_s=60))
    world.run(30)
    site.write(site.nights, NIGHTS.replace("= True", "= False"))
    in_force = site.reconciler.config
    result = site.reloader.dry_run()
    assert result.policy_comparison is not None
    [change] = policy_test_view(*result.policy_comparison, world.clock.now()).changes
    assert (change.kind, change.change, change.pool, change.nodes) == ("want", "comes", "cpu", 1)
    world.run(60)
    assert site.reconciler.config is in_force
    assert not world.launched_instances()
    site.change(site.nights, "return target\n", "return 1 / 0\n")
    result = site.reloader.dry_run()
    assert result.policy_comparison is not None
    view = policy_test_view(*result.policy_comparison, world.clock.now())
    assert view.failed == [f"policy nights: {site.nights}:15: ZeroDivisionError: division by zero"]
    site.change(site.nights, "class", "klass")
    assert f"{site.nights}:5: SyntaxError" in site.reloader.dry_run().text


def test_what_is_tried_may_import_when_it_is_asked(site: PolicySite) -> None:
    package = site.nights.parent / "dusk"
    package.mkdir(mode=0o755)
    text = NIGHTS.replace("nights", "dusk").replace("        if not", "        from .words import WORD\n        if not")
    site.write(package / "__init__.py", text)
    site.write(package / "words.py", "WORD = 1\n")
    site.change(site.toml, '"nights"]', '"dusk"]')
    result = site.reloader.dry_run()
    assert result.policy_comparison is not None
    assert result.policy_comparison[2].target.failed_policies == ()


def test_its_name_is_asked_for_once(site: PolicySite) -> None:
    names = """
    @property
    def name(self):
        return NAMES.pop()
"""
    site.change(site.nights, '    name: str = "nights"\n', names)
    site.change(site.nights, "class Settings", 'NAMES = ["nights"]\n\nclass Settings')
    assert site.reloader.reload("user:root").done
    site.reconciler.step()
    assert (site.reloader.policies_view(0.0).policies[1].name, site.reconciler.alarm) == ("nights", "")


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ("since: object = object()", "<object object at "),
        ("when: Broken = Broken()", "RuntimeError: no words for it"),
    ],
)
def test_settings_that_json_does_not_know_can_be_shown(site: PolicySite, field: str, shown: str) -> None:
    broken = "class Broken:\n    def __str__(self):\n        raise RuntimeError('no words for it')\n\n"
    site.change(site.nights, "class Settings", broken + "class Settings")
    site.change(
        site.nights,
        "    shut: bool",
        f"    model_config = {{'arbitrary_types_allowed': True}}\n    {field}\n    shut: bool",
    )
    assert site.reloader.reload("user:root").done
    assert shown in str(site.reloader.policies_view(0.0).policies[1].settings)


@pytest.mark.slow
def test_one_that_hangs_holds_everything_and_is_told_with_its_line(site: PolicySite) -> None:
    world = site.world
    first = world.slurm.submit(JobSpec(run_s=60))
    site.change(site.nights, "        if not", "        while snapshot.slurm.jobs: pass\n        if not")
    assert site.reloader.reload("signal:HUP").done
    site.reconciler.step()
    assert site.reconciler.alarm == (
        f"policy nights failed: {site.nights}:14: it took longer than 1 s and was interrupted; "
        "it is asked again after 60 s"
    )
    state = site.reloader.policies_view(0.0).policies[1]
    assert (state.name, state.place, state.failing) == ("nights", 2, True)
    assert state.took_s is not None
    assert state.took_s >= 1.0
    # A mended one is asked at once, not after the minute.
    site.write(site.nights, NIGHTS.replace("= True", "= False"))
    assert site.reloader.reload("signal:HUP").done
    world.run(300)
    assert (world.states(first), site.reconciler.alarm) == ([JobState.COMPLETED], "")


def test_policies_are_listed_as_they_are_asked(site: PolicySite) -> None:
    """Those that count machines are asked after those that take machines away."""
    site.change(site.toml, 'chain = ["idle", "nights"]', 'chain = ["limits", "idle", "nights"]')
    assert site.reloader.reload("user:root").done
    found = [(s.name, s.place, s.hard) for s in site.reloader.policies_view(0.0).policies[:3]]
    assert found == [("idle", 1, False), ("nights", 2, False), ("limits", 3, True)]


def test_the_answer_says_what_has_changed(site: PolicySite) -> None:
    assert site.reloader.reload("user:root").text == "nothing has changed"
    site.change(site.toml, "keep_alive_s = 60", "keep_alive_s = 30")
    site.change(site.toml, "[policies]", "[daemon]\nworkers = 3\n[policies]")
    site.change(site.nights, "is booted", "starts")
    states = site.reloader.policies_view(0.0)
    assert states.unread == [str(site.nights)]
    assert [(s.name, s.place, s.hard) for s in states.policies[:3]] == [
        ("idle", 1, False), ("nights", 2, False), ("backlog", None, False),
    ]  # fmt: skip
    found = site.reloader.reload("user:root")
    assert found.text == (
        "policies.idle.keep_alive_s: 60 -> 30\ndaemon.workers: 8 -> 3 (waits for a restart)\n"
        f"policy nights is read anew: {site.nights} has changed"
    )
    assert site.world.store.events(newest=True, limit=1)[0].reason == found.text.replace("\n", "; ")
    assert site.reloader.policies_view(0.0).unread == []
    # What waits for a restart is still to come.
    assert site.reloader.alarms == ("settings wait for 'systemctl restart burstd': daemon.workers",)
    assert site.reloader.reload("user:root").text == "daemon.workers: 8 -> 3 (waits for a restart)"
    site.write(site.nights.with_name("days.py"), "oops\n")
    site.change(site.toml, "workers = 3\n", "")
    site.reloader.reload("user:root")
    assert not [*site.reloader.alarms]
    assert site.reloader.policies_view(0.0).warnings == [
        f"{site.nights.with_name('days.py')}:1: NameError: name 'oops' is not defined"
    ]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a policy, installed in a folder of its own."""
    place = tmp_path / "packages"
    module, told = place / "site_of_ours" / "dusk.py", place / "site_of_ours-2.1.dist-info"
    module.parent.mkdir(parents=True, mode=0o755)
    for path, text in (
        (module, NIGHTS.replace("nights", "dusk")),
        (module.with_name("__init__.py"), ""),
        (told / "METADATA", "Name: site-of-ours\nVersion: 2.1\n"),
        (told / "entry_points.txt", "[burstd.policies]\ndusk = site_of_ours.dusk:plugin\n"),
    ):
        path.parent.mkdir(exist_ok=True)
        PolicySite.write(path, text)
    monkeypatch.syspath_prepend(str(place))
    yield module
    for name in [n for n in sys.modules if n.partition(".")[0] == "site_of_ours"]:
        del sys.modules[name]


def test_of_an_upgraded_package_it_says_that_only_a_restart_takes_it(package: Path, site: PolicySite) -> None:
    site.change(site.toml, '"nights"]', '"dusk"]')
    assert site.reloader.reload("user:root").done
    assert [(s.name, s.origin) for s in site.reloader.policies_view(0.0).policies[:2]][1] == (
        "dusk",
        "site-of-ours 2.1",
    )
    assert site.reloader.policies_view(0.0).restart == []
    PolicySite.write(package, package.read_text() + "# upgraded\n")
    says = (
        f"{package} has changed since burstd started, and dusk goes on as it was; 'systemctl restart burstd' takes it"
    )
    assert site.reloader.policies_view(0.0).restart == [says]
    assert site.reloader.reload("user:root").text == says


def test_a_reload_tells_whose_jobs_share_no_machine(site: PolicySite) -> None:
    site.change(site.toml, '["idle", "nights"]', '["idle", "budget"]')
    site.change(site.toml, "[policies.idle]", '[policies.budget.users."*"]\nlimit = 25\n[policies.idle]')
    assert site.reloader.reload("user:root").done
    chain = copies_for_trial(site.reconciler.config.policies)
    assert [getattr(policy, "payers", None) for policy in chain] == [
        {"account": frozenset(), "user": frozenset()},
        {"account": frozenset(), "user": frozenset("*")},
    ]


def test_a_reload_closes_the_breakers_of_what_it_may_have_mended(site: PolicySite) -> None:
    """Of a pool that changed its own, of [node] those of every check; the event names who did it."""
    own, check, stockout = (
        CircuitBreaker("alpha/*/*/cpu.1/*/cpu", "frameworks", 3, 2e9, "no gromacs"),
        CircuitBreaker("alpha/r/z/cpu.1/*", "munge", 1, 2e9, "no munge"),
        CircuitBreaker("alpha/r/z/cpu.1/spot", "capacity", 1, 2e9, "none left"),
    )
    store = site.world.store
    for breaker in (own, check, stockout):
        store.save_breaker(breaker)
    assert "circuit breakers" not in site.reloader.reload("user:ada").text
    site.change(site.toml, '"gpu:v100:2"', '"gpu:v100:4"')
    assert "circuit breakers" not in site.reloader.reload("user:ada").text
    site.change(site.toml, "cpus = 4\nmemory = 8000\noffers", "cpus = 4\nmemory = 7000\noffers")
    assert f"circuit breakers closed: {own.key}" in site.reloader.reload("user:ada").text
    assert {b.cause for b in store.breakers()} == {"munge", "capacity"}
    site.change(site.toml, "[node]\n", "[node]\nskip_checks = ['munge']\n")
    assert f"circuit breakers closed: {check.key}" in site.reloader.reload("user:ada").text
    assert store.breakers() == (stockout,)
    last = store.events(subject=f"breaker:{check.key}")[-1]
    assert (last.reason, last.cause) == ("cleared", "user:ada")


def test_provider_forget_closes_breakers_and_says_which(site: PolicySite) -> None:
    store = site.world.store
    kept = CircuitBreaker("alpha/r/z/cpu.2/spot", "capacity", 1, 2e9, "none left")
    for breaker in (kept, replace(kept, key="alpha/r/z/cpu.1/spot")):
        store.save_breaker(breaker)
    commands = CommandHandler(store, site.reconciler, site.world.clock, site.reloader, cast("SlurmNodeValidator", None))
    answer = commands.execute(ForgetMachines((), "user:ada", (("alpha/r/z/cpu.1/spot", "capacity"),)))
    assert answer.text == "circuit breakers closed: alpha/r/z/cpu.1/spot (capacity)"
    assert store.breakers() == (kept,)
    last = store.events(subject="breaker:alpha/r/z/cpu.1/spot")[-1]
    assert (last.reason, last.cause) == ("cleared", "user:ada")


def test_a_reload_tells_what_new_trees_need_in_slurm_conf(site: PolicySite) -> None:
    trees = '[mounts.trees]\nhome = { path = "/home/{user}" }\n'
    site.write(site.toml, site.toml.read_text() + trees)
    said = site.reloader.reload("user:root").text
    assert "slurm.conf needs PrologSlurmctld: see 'burstctl check'" in said
    site.write(site.toml, site.toml.read_text() + 'work = { path = "/work", pools = ["gpu"] }\n')
    assert "slurm.conf needs ExclusiveUser=YES for burst: see" in site.reloader.reload("user:root").text
    assert "slurm.conf" not in site.reloader.reload("user:root").text
