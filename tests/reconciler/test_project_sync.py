"""Projects of burstctl from the command to Slurm: the record, the reconciler and the settings are real, Slurm is not.

What SlurmProjects itself does is tried on real Slurms (tests/e2e/test_projects.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import pytest

from burstd.daemon.project_commands import ProjectCommands
from burstd.daemon.settings_in_force import PolicyReloader, load_and_check, runtime_config
from burstd.domain.command import ChangeProject, CommandResult, DeleteProject
from burstd.domain.errors import SchedulerUnavailable
from burstd.domain.project import OverQuotaLimits, Project, ProjectsView, SetupStep, gpu_number
from burstd.domain.snapshot import SlurmView
from burstd.reconciler.pollers.projects import ProjectSync
from burstd.slurm.projects import SlurmProjects
from tests.crash.faults import Crash
from tests.crash.world import World
from tests.reconciler.test_policy_reloader import NIGHTS, SETTINGS, PolicySite
from tests.virtual.job import JobSpec

PROJECTS = """
[projects.a]
account = "team-a"
quota = 4
partitions = ["burst"]
"""
BY = "user:root"


@dataclass
class FakeSlurmProjects(SlurmProjects):
    """slurmctld and slurmdbd in a dictionary; each call says what it changed."""

    limits: dict[str, OverQuotaLimits] = field(default_factory=dict)
    quotas: dict[str, str] = field(default_factory=dict)
    reads: int = 0
    features: dict[str, AbstractSet[str]] = field(default_factory=dict)
    """Of nodes, as burstd gave them at the last reading."""
    written: list[object] = field(default_factory=list)
    ctld_down: bool = False
    dbd_down: bool = False
    disk_full: bool = False
    made_by_burstd: dict[str, bool] = field(default_factory=dict)
    without_preemption: set[str] = field(default_factory=set)
    unwritten: tuple[str, ...] = ()
    min_runtimes: dict[str, float] = field(default_factory=dict)
    compared: int = 0
    """How often minimum run times were."""
    shards: dict[str, int] = field(default_factory=dict)
    table: list[str] = field(default_factory=list)
    """The projects that job_submit.lua knows."""
    dies_at: str = ""
    """burstd is killed in the middle of this call."""

    def __post_init__(self) -> None:
        self.restart_slurmctld()

    def restart_slurmctld(self) -> None:
        """Partitions that are not in slurm.conf are gone; the QOS are slurmdbd's."""
        self.limits.clear()

    def _check(self, call: str, *, dbd: bool = False) -> None:
        if self.ctld_down:
            raise SchedulerUnavailable("slurmctld does not answer")
        if dbd and self.dbd_down:
            raise SchedulerUnavailable("slurmdbd does not answer")
        if self.dies_at == call:
            self.dies_at = ""
            raise Crash

    def read(
        self, projects: Mapping[str, Project], features: Mapping[str, AbstractSet[str]] | None = None
    ) -> ProjectsView:
        self.reads += 1
        self.features = dict(features or {})
        self._check("read")
        lacking = {name: "partition q-x: wanted, found none" for name in projects if name not in self.limits}
        return ProjectsView(
            projects, dict(self.limits), lacking, frozenset(self.without_preemption), self.unwritten,
            shards={name: parts for name, parts in self.shards.items() if name in projects},
        )  # fmt: skip

    def min_runtime_faults(self, projects: Mapping[str, Project]) -> dict[str, str]:
        self.compared += 1
        self._check("min_runtime_faults", dbd=True)
        wrong = {n: p.min_runtime_s for n, p in projects.items() if self.min_runtimes.get(n, 0.0) != p.min_runtime_s}
        return {name: f"QOS o-{name}: set {seconds:.0f}" for name, seconds in wrong.items() if name in self.limits}

    def set_quota_preemption(self, preempt: Collection[str], wait: Collection[str]) -> None:
        self._check("set_quota_preemption")
        self.without_preemption = (self.without_preemption | {*wait}) - {*preempt}

    def write_table(self, projects: Collection[Project], shared: Collection[str] = ()) -> None:
        if self.disk_full:
            raise OSError(28, "No space left on device")
        self.table = [project.name + " in shards" * (project.name in shared) for project in projects]

    def set_tiers(self, tiers: Mapping[str, int]) -> None:
        self._check("set_tiers")
        self.written.append(dict(tiers))
        self.limits |= {name: replace(self.limits[name], tier=tier) for name, tier in tiers.items()}

    def set_caps(self, caps: Mapping[str, Fraction | None]) -> None:
        self._check("set_caps", dbd=True)
        self.written.append(dict(caps))
        self.limits |= {name: replace(self.limits[name], gpus=gpus) for name, gpus in caps.items()}

    def set_up(self, project: Project, *, made_by_burstd: bool = False) -> None:
        self._check("before set_up", dbd=True)
        self.made_by_burstd[project.name] = made_by_burstd
        self.quotas[project.name] = gpu_number(project.quota)
        self.min_runtimes[project.name] = project.min_runtime_s
        self._check("set_up")
        self.limits.setdefault(project.name, OverQuotaLimits(Fraction(0), 1))

    def remove(self, project: Project) -> None:
        self._check("remove", dbd=True)
        self.limits.pop(project.name, None)
        self.quotas.pop(project.name, None)


class ProjectSite:
    """A virtual site with projects. ``start`` after ``kill`` begins with the same database and the same Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slurm = FakeSlurmProjects()
        self.world = World(folder, projects=self.slurm)
        self.toml = folder / "burstd.toml"
        (folder / "policies").mkdir(mode=0o755)
        (folder / "munge.key").touch(mode=0o600)
        PolicySite.write(folder / "policies" / "nights.py", NIGHTS)
        self.write(PROJECTS)
        self.start()

    def write(self, projects: str) -> None:
        text = SETTINGS.format(cluster="lab", folder=self.folder).replace(', "nights"', "")
        PolicySite.write(self.toml, text + projects)

    def start(self) -> None:
        self.world.start()
        ready = load_and_check(self.toml)
        reconciler = self.world.reconciler
        assert reconciler is not None
        reconciler.reload(runtime_config(ready))
        self.reloader = PolicyReloader(ready, reconciler, self.world.store)
        self.commands = ProjectCommands(
            self.world.store, self.world.clock, self.reloader,
            lambda: reconciler.latest[0] if reconciler.latest is not None else None,
        )  # fmt: skip

    @property
    def sync(self) -> ProjectSync:
        assert self.world.reconciler is not None
        assert self.world.reconciler._projects is not None
        return self.world.reconciler._projects

    def change(
        self, name: str, values: Mapping[str, object], *, create: bool = False, reset: bool = False
    ) -> CommandResult:
        command = ChangeProject(name, values, create=create, reset=reset, dry_run=False, by=BY)
        before = self.world.store.project_overrides()
        checked = self.commands.change(replace(command, dry_run=True))
        assert self.world.store.project_overrides() == before
        done = self.commands.change(command)
        assert (done.text, done.undo, done.done) == (checked.text, checked.undo, checked.done)
        return done

    def create(self, name: str, **values: object) -> CommandResult:
        return self.change(name, {"account": f"team-{name}", "partitions": ["burst"], **values}, create=True)

    def delete(self, name: str) -> CommandResult:
        return self.commands.delete(DeleteProject(name, dry_run=False, by=BY))

    def pending(self) -> dict[str, SetupStep]:
        return {override.name: override.pending for override in self.world.store.project_overrides()}

    @property
    def projects(self) -> Mapping[str, Project]:
        assert self.world.reconciler is not None
        return self.world.reconciler.config.projects

    def granted(self, name: str) -> list[str]:
        project = self.projects[name]
        return [gpu_number(gpus) for gpus in (project.quota, project.limit) if gpus is not None]

    def history(self, name: str) -> list[tuple[str, str, str]]:
        return [(e.new, e.reason, e.cause) for e in self.world.store.events(subject=f"project:{name}")]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ProjectSite]:
    made = ProjectSite(tmp_path)
    yield made
    made.world.kill()


def test_a_project_is_made_changed_taken_back_and_deleted_each_by_the_command_that_was_printed(
    site: ProjectSite,
) -> None:
    created = site.create("e", quota="1", min_runtime_s=600)
    assert (created.done, created.undo) == (True, "burstctl project delete e")
    assert site.granted("e") == ["1"]
    assert "q-e" in site.world.reconciler.config.pools["gpu"].partitions  # type: ignore[union-attr]
    site.world.run(10)
    assert (site.pending(), site.slurm.quotas["e"]) == ({"e": SetupStep.NONE}, "1")
    changed = site.change("e", {"quota": "2", "limit": "6"})
    assert changed.text == "project e: quota 1 -> 2, limit none -> 6"
    assert changed.undo == "burstctl project set e --quota 1 --limit none"
    site.world.run(10)
    assert site.slurm.quotas["e"] == "2"
    site.change("e", {"quota": "1", "limit": None})
    site.world.run(10)
    assert (site.slurm.quotas["e"], site.granted("e")) == ("1", ["1"])
    deleted = site.delete("e")
    assert deleted.undo == (
        "burstctl project create e --account team-e --quota 1 --partitions burst --min-runtime 600.0s"
    )
    assert "e" not in site.projects
    site.world.run(10)
    assert (site.pending(), site.slurm.quotas) == ({}, {})
    assert [(new, reason) for new, reason, cause in site.history("e") if cause == BY] == [
        ("created", "account none -> team-e, quota none -> 1, partitions none -> burst, min_runtime none -> 600.0s"),
        ("changed", "quota 1 -> 2, limit none -> 6"),
        ("changed", "quota 2 -> 1, limit 6 -> none"),
        ("deleted", ""),
    ]
    data = [event.data for event in site.world.store.events(subject="project:e") if event.new == "changed"]
    assert (data[0]["old"]["quota"], data[0]["new"]["quota"]) == ("1", "2")


def test_more_quota_than_there_are_gpus_is_refused(site: ProjectSite) -> None:
    site.world.run(10)
    refused = site.create("e", quota="3")
    assert not refused.done
    assert refused.text.startswith("quotas add up to 7 GPUs (a 4 GPUs, e 3 GPUs), and the nodes of burst have 6: lower")
    assert site.history("e") == []


def test_a_project_of_the_file_is_changed_over_a_restart_and_goes_back_to_the_file(site: ProjectSite) -> None:
    changed = site.change("a", {"quota": "6"})
    assert changed.undo == "burstctl project set a --reset"
    site.world.run(10)
    assert site.slurm.made_by_burstd == {"a": False}, "slurm.conf has it"
    site.world.kill()
    site.start()
    assert site.granted("a") == ["6"]
    site.write(PROJECTS.replace("quota = 4", "quota = 5\nlimit = 9"))
    assert "projects.a.quota: 4 -> 5" in site.reloader.reload(BY).text
    assert site.granted("a") == ["6", "9"]
    assert site.change("a", {}, reset=True).text == "project a: quota 6 -> 5"
    site.world.run(10)
    assert (site.slurm.quotas["a"], site.pending(), site.granted("a")) == ("5", {}, ["5", "9"])


def test_a_change_whose_project_the_file_has_no_more_is_an_alarm_until_it_is_forgotten(site: ProjectSite) -> None:
    site.change("a", {"quota": "6"})
    site.write("")
    assert site.reloader.reload(BY).done
    assert "burstd.toml has it no more" in site.reloader.alarms[0]
    assert site.projects == {}
    assert site.change("a", {}, reset=True).done
    assert (site.reloader.alarms, site.projects) == ((), {})
    site.world.run(10)
    assert site.pending() == {}


@pytest.mark.parametrize(
    ("name", "create", "values", "why"),
    [
        ("a", True, {"account": "team-x"}, "there is a project a: change it with 'burstctl project set a'"),
        ("e", True, {"partitions": ["burst"]}, "say --account ACCOUNT, or --account none"),
        ("e", False, {"quota": "1"}, "there is no project e any more"),
        ("a", False, {"quota": "-1"}, "projects.a.quota: must not be negative"),
        ("e", True, {"account": "team-a", "partitions": ["burst"]}, "team-a is the account of project e too"),
    ],
)
def test_what_is_refused_changes_nothing(
    site: ProjectSite, name: str, create: bool, values: Mapping[str, object], why: str
) -> None:
    before = site.projects
    result = site.change(name, values, create=create)
    assert (result.done, result.changed) == (False, False)
    assert why in result.text
    assert (site.pending(), site.projects, site.history(name)) == ({}, before, [])


@pytest.mark.parametrize("dies_at", ["before set_up", "set_up"])
def test_a_burstd_that_is_killed_over_the_set_up_takes_it_up_again(site: ProjectSite, dies_at: str) -> None:
    site.slurm.dies_at = dies_at
    site.create("e", quota="2")
    site.world.run(10)
    assert site.world.reconciler is None
    site.start()
    assert site.pending() == {"e": SetupStep.SET_UP}
    site.world.run(10)
    assert (site.pending(), [*site.slurm.limits]) == ({"e": SetupStep.NONE}, ["e"])


def test_with_slurmdbd_down_a_project_waits_visibly_and_is_caught_up(site: ProjectSite) -> None:
    site.slurm.dbd_down = True
    site.create("e")
    site.world.run(60)
    assert site.pending() == {"e": SetupStep.SET_UP}
    assert site.sync.errors() == {"e": "slurmdbd does not answer"}
    assert "project e waits for Slurm: slurmdbd does not answer" in site.world.alarm
    assert site.slurm.table == ["a"], "nobody is sent to partitions that are not there"
    site.slurm.dbd_down = False
    site.world.run(30)
    assert (site.pending(), site.sync.errors(), site.slurm.table) == ({"e": SetupStep.NONE}, {}, ["a", "e"])
    assert "project e" not in site.world.alarm


def test_a_project_with_jobs_is_not_deleted(site: ProjectSite) -> None:
    site.create("e")
    site.world.run(10)
    job = site.world.slurm.submit(JobSpec(partitions=("burst", "o-e"), run_s=1000))
    site.world.run(10)
    refused = site.delete("e")
    assert not refused.done
    assert refused.text == (
        f"project e has 1 job(s) in the queue ({job}): wait until they have ended, or cancel them: "
        "squeue -h -p o-e,q-e -o %A | sort -u | xargs scancel"
    )
    assert "stands in burstd.toml" in site.delete("a").text


def test_partitions_that_burstd_made_are_made_again_and_those_of_the_file_are_an_alarm(site: ProjectSite) -> None:
    site.create("e")
    site.world.run(10)
    site.slurm.restart_slurmctld()
    site.world.run(20)
    assert "e" in site.slurm.limits
    assert "project a: partition q-x" in site.world.alarm
    assert site.history("e")[-1] == ("set up in Slurm", "partition q-x: wanted, found none", "burstd")


def test_limits_are_written_once_tiers_without_slurmdbd_and_a_failure_keeps_the_last_view(site: ProjectSite) -> None:
    site.slurm.limits = {"a": OverQuotaLimits(Fraction(2), 2)}
    site.slurm.dbd_down = True
    site.world.run(30)
    # Nothing of a runs or waits: it may run nothing beyond its quota.
    assert site.slurm.written == [{"a": 1}]
    assert "caps of projects stay as they are: slurmdbd does not answer" in site.world.alarm
    site.slurm.ctld_down = True
    site.world.run(60)
    assert "projects are limited by what was last read of them: slurmctld does not answer" in site.world.alarm
    assert site.sync.step(site.projects).limits == {"a": OverQuotaLimits(Fraction(2), 1)}
    site.slurm.ctld_down = site.slurm.dbd_down = False
    site.world.run(60)
    # After the limit the tier once more, that slurmctld looks at its queue.
    assert (site.slurm.written, site.world.alarm) == ([{"a": 1}, {"a": 0}, {"a": 1}], "")
    # As after scontrol reconfigure.
    site.slurm.limits["a"] = OverQuotaLimits(Fraction(0), 7)
    site.world.run(30)
    assert site.slurm.limits["a"] == OverQuotaLimits(Fraction(0), 1)


def test_a_table_that_cannot_be_written_is_an_alarm_and_written_later(site: ProjectSite) -> None:
    site.slurm.disk_full = True
    site.create("e")
    site.world.run(10)
    assert "jobs are not given the partitions of new projects: [Errno 28] No space left" in site.world.alarm
    site.slurm.disk_full = False
    site.world.run(20)
    assert site.slurm.table == ["a", "e"]
    assert "Errno" not in site.world.alarm


def test_slurm_is_not_asked_for_features_that_burstd_has_read_already(site: ProjectSite) -> None:
    site.world.run(10)
    assert site.world.reconciler is not None
    assert site.world.reconciler.latest is not None
    seen = site.world.reconciler.latest[0].slurm
    assert isinstance(seen, SlurmView)
    assert site.slurm.features
    assert site.slurm.features == {name: node.features for name, node in seen.nodes.items()}


def test_a_quota_waits_and_takes_back_again_when_its_project_does_not_wait_or_is_no_more(site: ProjectSite) -> None:
    site.slurm.limits = {"a": OverQuotaLimits(Fraction(0), 1)}
    waits = PROJECTS.replace("quota = 4", "quota = 4\nreclaim_after_s = 60.0")
    for settings, without_preemption in ((waits, {"a"}), (PROJECTS, set()), (waits, {"a"}), ("", set())):
        site.write(settings)
        assert site.reloader.reload(BY).done
        site.world.run(20)
        assert site.slurm.without_preemption == without_preemption
    site.write(waits)
    site.reloader.reload(BY)
    site.slurm.dies_at = "set_quota_preemption"
    site.world.run(20)
    assert site.world.reconciler is None
    site.start()
    site.world.run(20)
    assert site.slurm.without_preemption == {"a"}
    # As after scontrol reconfigure, and with slurmctld down.
    site.slurm.without_preemption = set()
    site.world.run(20)
    assert site.slurm.without_preemption == {"a"}
    site.slurm.dies_at, site.slurm.without_preemption = "", {"a", "gone"}
    site.world.run(20)
    assert site.slurm.without_preemption == {"a"}


def test_another_min_runtime_is_an_alarm_with_the_remedy_until_somebody_sets_it(site: ProjectSite) -> None:
    site.slurm.limits = {"a": OverQuotaLimits(Fraction(0), 1)}
    site.world.run(20)
    compared = site.slurm.compared
    site.world.run(600)
    assert (site.slurm.compared, site.world.alarm) == (compared, ""), "slurmdbd is left alone"
    site.write(PROJECTS.replace("quota = 4", "quota = 4\nmin_runtime_s = 300.0"))
    site.reloader.reload(BY)
    site.world.run(20)
    assert site.world.alarm == "project a: QOS o-a: set 300"
    site.slurm.min_runtimes["a"] = 300.0
    site.world.run(120)
    assert site.world.alarm == ""


def test_burstd_writes_the_min_runtime_of_what_burstctl_has_changed(site: ProjectSite) -> None:
    site.create("e", min_runtime_s=60)
    site.change("a", {"quota": "3"})
    site.world.run(20)
    site.change("e", {"min_runtime_s": 90})
    site.write(PROJECTS.replace("quota = 4", "quota = 4\nmin_runtime_s = 300.0"))
    site.reloader.reload(BY)
    site.world.run(120)
    assert (site.slurm.min_runtimes, site.world.alarm) == ({"a": 300.0, "e": 90.0}, "")
    assert site.history("a")[-1] == ("set up in Slurm", "QOS o-a: set 300", "burstd")


def test_partitions_that_slurm_conf_lacks_are_an_alarm(site: ProjectSite) -> None:
    site.slurm.limits = {"a": OverQuotaLimits(Fraction(0), 1)}
    site.slurm.unwritten = ("q-z", "o-z")
    site.world.run(20)
    assert site.world.alarm == (
        "partitions that scontrol made (o-z, q-z): scontrol reconfigure ends all of their jobs: add their lines, or"
        " 'Include burstd-projects.conf' as docs/projects.md says, before scontrol reconfigure"
    )
    site.slurm.unwritten = ()
    site.world.run(20)
    assert site.world.alarm == ""


def test_slurm_is_not_read_for_a_site_without_projects(site: ProjectSite) -> None:
    site.write("")
    site.reloader.reload(BY)
    before = site.slurm.reads
    site.world.run(120)
    assert site.slurm.reads == before


def test_jobs_of_shards_stay_in_their_quota_while_slurm_cannot_be_read_after_a_start(site: ProjectSite) -> None:
    site.slurm.limits = {"a": OverQuotaLimits(Fraction(0), 1)}
    site.slurm.shards = {"a": 4}
    site.world.run(20)
    assert site.slurm.table == ["a in shards"]
    site.world.kill()
    site.slurm.ctld_down = True
    site.start()
    site.world.run(300)
    assert site.slurm.table == ["a in shards"]
