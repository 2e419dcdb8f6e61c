"""Every setting of burstd.toml: in force after a reload, or said to wait for a restart. None is left out.

The parts are those of a daemon that is about to run: what they hold is looked at, not what the settings say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from burstd.cli.offline.config import render_options
from burstd.daemon import app
from burstd.daemon.settings_in_force import PolicyReloader, load_and_check
from burstd.settings import Settings, diff_settings, load_settings, settings_until_restart
from burstd.settings.sections import ProviderSettings

GIB = 1 << 30


@dataclass
class AssembledDaemon:
    """The parts, and what reloads them."""

    components: Any
    reloader: PolicyReloader
    toml: Path

    @property
    def config(self) -> Any:
        return self.components.reconciler.config

    @property
    def pool(self) -> Any:
        return self.config.pools["gpu"]

    @property
    def staging(self) -> Any:
        return self.components.staging

    @property
    def streams(self) -> Any:
        return self.components.mounts._context.streams

    def user_data(self) -> str:
        return str(self.components.reconciler._executor._context.user_data(self.pool, "sky"))

    def site_requirements(self) -> Any:
        """burstctl slurm-config and check read the file anew at each call."""
        return render_options(load_settings(self.toml, check_files=False))


ReadValue = Callable[[AssembledDaemon], object]


def tuning(name: str) -> ReadValue:
    return lambda d: getattr(d.config.tuning, name)


def site(name: str) -> ReadValue:
    return lambda d: getattr(d.components.node_validator.config, name)


def sampler(name: str) -> ReadValue:
    return lambda d: getattr(d.components.job_use.settings, name)


def idle_gpus(name: str) -> ReadValue:
    return lambda d: getattr(d.config.tuning.idle_gpus["p"], name)


def in_user_data(word: str) -> ReadValue:
    return lambda d: word in d.user_data()


def project(name: str) -> ReadValue:
    return lambda d: getattr(d.config.projects["a"], name)


def notify(name: str) -> ReadValue:
    return lambda d: attrgetter(name)(d.components.current_settings.settings.notify)


def dataset(d: AssembledDaemon) -> object:
    return d.staging._check.rules.datasets("maps"), d.staging._dataset("maps@v1")


# Key -> in the first file, in the second, what the daemon holds then, and where. Requirements: the same with the first.
TABLE: dict[str, tuple[str, str, object, ReadValue]] = {
    "bill.close_after_days": ("5", "9", 9 * 86400.0, lambda d: d.components.close_after_s()),
    "rates": (
        '{date = 2026-01-01, currency = "EUR", worth = {USD = "0.9"}}',
        '{date = 2026-01-01, currency = "EUR", worth = {USD = "0.8"}}',
        Decimal("0.8"),
        lambda d: d.config.tuning.rates.worth["USD"],
    ),
    "site.cost": (
        '{cpu = {nodes = ["n[1-9]"], node_hour = "1.5"}}',
        '{cpu = {nodes = ["n[1-9]"], node_hour = "2.5"}}',
        Decimal("2.5"),
        lambda d: d.config.tuning.site_costs.groups[0].hour.owned,
    ),
    "bill.keep_years": ("10", "1", 366 * 86400.0, lambda d: d.components.charges_retention_s()),
    "daemon.retention_days": ("400", "30", 30 * 86400.0, lambda d: d.components.retention_s()),
    "daemon.log_level": ('"info"', '"error"', logging.ERROR, lambda _: logging.getLogger().level),
    "daemon.tick_s": ("15", "7", 7.0, lambda d: d.components.reconciler._context.intervals.tick_s),
    "daemon.poll_s": ("2", "3", 3.0, lambda d: d.components.reconciler._context.intervals.poll_s),
    "daemon.cloud_poll_s": (
        "15",
        "9",
        9.0,
        lambda d: d.components.reconciler._context.intervals.cloud_poll_s,
    ),
    "daemon.boot_timeout_s": ("600", "500", 500.0, tuning("boot_timeout_s")),
    "daemon.validation_timeout_s": ("180", "170", 170.0, tuning("validation_timeout_s")),
    "daemon.gang_timeout_s": ("900", "800", 800.0, tuning("gang_timeout_s")),
    "daemon.orphan_grace_s": ("120", "110", 110.0, tuning("orphan_grace_s")),
    "daemon.slurmd_restart_s": ("20", "21", 21.0, tuning("slurmd_restart_s")),
    "daemon.node_down_grace_s": ("60", "61", 61.0, tuning("node_down_grace_s")),
    "daemon.launch_attempts": ("4", "5", 5, tuning("launch_attempts")),
    "daemon.power_down_retry_s": ("30", "31", 31.0, tuning("power_down_retry_s")),
    "daemon.spot_interruptions": ("2", "3", 3, tuning("spot_interruptions")),
    "slurm.conf_server": ('"head"', '"other:7000"', "other:7000", site("conf_server")),
    "slurm.bind_depth": ("50", "51", 51, tuning("bind_depth")),
    "slurm.bind_timeout_s": ("60", "62", 62.0, tuning("bind_timeout_s")),
    "slurm.programs": ('"/usr/bin"', '"/opt/bin"', "/opt/bin", lambda d: d.site_requirements().programs),
    "slurm.keep_partitions": ("[]", '["main"]', ("main",), lambda d: d.site_requirements().onprem_partitions),
    "slurm.resume_timeout_s": ("900", "901", 901, lambda d: d.site_requirements().resume_timeout_s),
    "slurm.suspend_timeout_s": ("30", "32", 32, lambda d: d.site_requirements().suspend_timeout_s),
    "slurm.devices": (
        '{gpu="/dev/a{}"}',
        '{gpu="/dev/b{}"}',
        {"gpu": "/dev/b{}"},
        lambda d: d.site_requirements().devices,
    ),
    "pools.gpu.nodes": ('"g[1-2]"', '"g[1-3]"', ("g1", "g2", "g3"), lambda d: d.pool.slots),
    "pools.gpu.partitions": ('["p"]', '["q"]', "q", lambda d: d.pool.partitions[0]),
    "pools.gpu.cpus": ("1", "2", 2, lambda d: d.pool.shape.cpus),
    "pools.gpu.memory": ("1", "2", 2, lambda d: d.pool.shape.memory_mib),
    "pools.gpu.cpu_jobs": ("false", "true", True, lambda d: d.pool.cpu_jobs),
    "pools.gpu.scratch": ('"1G"', '"2G"', 2 * GIB, lambda d: d.pool.scratch),
    "pools.gpu.gres": ('"gpu:1g.10gb:7"', '"gpu:1,shard:4"', 1, lambda d: d.pool.shape.gpus()),
    "pools.gpu.mig": ('"1g.10gb:7"', '""', (), lambda d: d.pool.mig),
    "pools.gpu.gpu_memory_limit": ('"none"', '"mps"', "mps", lambda d: d.pool.gpu_memory_limit),
    "pools.gpu.gpu_test": ('"short"', '"long"', "long", lambda d: d.pool.gpu_test.value),
    "pools.gpu.gpu_test_limit_s": ("60", "61", 61.0, lambda d: d.pool.gpu_test_limit_s),
    "pools.gpu.gpu_min_gb_s": ("0", "40", 40.0, lambda d: d.pool.gpu_min_gb_s),
    "pools.gpu.fabric": ('"efa"', '"ib"', "ib", lambda d: d.pool.fabric),
    "pools.gpu.fabric_test": ('"ib_write_bw"', '"ib_send_bw"', "ib_send_bw", lambda d: d.pool.fabric_test.command),
    "pools.gpu.fabric_test_limit_s": ("60", "61", 61.0, lambda d: d.pool.fabric_test.limit_s),
    "pools.gpu.fabric_min_gb_s": ("1", "2", 2.0, lambda d: d.pool.fabric_test.min_gb_s),
    "pools.gpu.features": (
        '["x"]',
        '["y"]',
        {"y"},
        lambda d: d.pool.shape.features - {"pytorch-a", "b", "ib", "fabric"},
    ),
    "pools.gpu.offers": (
        '[{provider="sky"}]',
        '[{provider="sky", zones=["z"]}]',
        ("z",),
        lambda d: d.pool.rules[0].zones,
    ),
    "policies.chain": ('["idle"]', '["idle", "limits"]', 2, lambda d: len(d.config.policies)),
    "policies.folder": (
        '"FOLDER/one"',
        '"FOLDER/two"',
        "two",
        lambda d: d.reloader.policies_view(0.0).folder.rpartition("/")[2],
    ),
    "policies.timeout_s": ("5", "6", 6.0, lambda d: d.config.policies[0]._timeout_s),
    "policies.idle.keep_alive_s": (
        "300",
        "301",
        301.0,
        lambda d: d.reloader.policies_view(0.0).policies[0].settings["keep_alive_s"],
    ),
    "node.ssh_user": ('"root"', '"admin"', "admin", site("ssh_user")),
    "node.ssh_port": ("22", "23", 23, site("ssh_port")),
    "node.unattended_h": ("12", "1.5", 5400, lambda d: d.components.node_validator.config.unattended.after_s),
    "node.connect_timeout_s": ("10", "11", 11.0, site("connect_timeout_s")),
    "node.host_keys": (
        '"console"',
        '"first_use"',
        "first_use",
        lambda d: d.components.node_validator.config.host_key_policies["wind"].value,
    ),
    "node.host_keys_of": (
        '{sky="console"}',
        '{sky="first_use"}',
        "first_use",
        lambda d: d.components.node_validator.config.host_key_policies["sky"].value,
    ),
    "node.munge_key": (
        '"FOLDER/key"',
        '"FOLDER/key2"',
        "key2",
        lambda d: d.components.node_validator.config.munge_key.name,
    ),
    "node.munge_socket": ('"/run/a"', '"/run/b"', "/run/b", site("munge_socket")),
    "node.slurmd_options": ("[]", '["-vv"]', ("-vv",), site("slurmd_options")),
    "node.skip_checks": ("[]", '["os"]', {"os"}, site("skip_checks")),
    "node.users": ('["slurm"]', '["munge"]', ("munge",), site("users")),
    "node.compare_job_users": ("true", "false", False, site("compare_job_users")),
    "node.sentinels": ("[]", '["/a"]', ("/a",), site("sentinels")),
    "node.modules": ("[]", '["GCC"]', ("GCC",), site("modules")),
    "node.cvmfs_max_behind": ("0", "3", 3, site("cvmfs_max_behind")),
    "node.may_differ": ("[]", '["kernel"]', {"kernel"}, site("may_differ")),
    "node.os": ('""', '"debian 12"', "debian 12", site("os")),
    "node.gpu_names": ("{}", '{a="A"}', {"a": "A"}, site("gpu_names")),
    "node.gpu_devices": ('"/dev/a*"', '"/dev/b*"', "/dev/b*", site("gpu_devices")),
    "node.clock_tolerance_s": ("30", "33", 33.0, site("clock_tolerance_s")),
    "node.free_mib": ("256", "257", 257, site("free_mib")),
    "node.tmp_mib": ("0", "9", 9, site("tmp_mib")),
    "node.check_commands": ("{}", '{c="true"}', {"c": "true"}, site("check_commands")),
    "node.check_folder": ('"FOLDER"', '"FOLDER/checks"', {"a": b"#!/bin/sh\n"}, site("check_programs")),
    "node.start_command": ("[]", '["go"]', ("go",), site("start_command")),
    "node.user_data": ('"FOLDER/one.in"', '"FOLDER/two.in"', True, in_user_data("# template two")),
    "node.timezone": ('"Etc/UTC"', '"Europe/Paris"', True, in_user_data("Europe/Paris")),
    "node.packages": ("[]", '["jq"]', True, in_user_data('"jq"')),
    "node.commands": ("[]", '["date -u"]', True, in_user_data("date -u")),
    "pools.gpu.frameworks": ('["pytorch-a"]', '["pytorch-a","b"]', 2, lambda d: len(d.pool.frameworks)),
    "frameworks.pytorch-a.modules": ('["A"]', "[]", (), lambda d: d.pool.frameworks[0].modules),
    "frameworks.pytorch-a.image": ('""', '"/a.sif"', "/a.sif", lambda d: d.pool.frameworks[0].image),
    "frameworks.pytorch-a.check": ('""', '"true"', "true", lambda d: d.pool.frameworks[0].check),
    "frameworks.pytorch-a.limit_s": ("9", "8", 8.0, lambda d: d.pool.frameworks[0].limit_s),
    **{
        f"sampler.{name}": (first, second, value, sampler(name))
        for name, first, second, value in (
            ("enabled", "true", "false", False),
            ("every_s", "10", "5", 5.0),
            ("idle_below_percent", "2", "5", 5.0),
            ("collect_s", "180", "60", 60.0),
            ("calls_per_minute", "720", "60", 60),
            ("last_figures_s", "20", "5", 5.0),
            ("loading_mib_s", "5", "50", 50.0),
            ("own_nodes", "[]", '["cn*"]', ("cn*",)),
            ("known_hosts", '"/etc/ssh/ssh_known_hosts"', '"/etc/hosts.keys"', Path("/etc/hosts.keys")),
            ("jobstats", "false", "true", True),
        )
    },
    **{
        f"idle_gpus.p.{name}": (first, second, value, idle_gpus(name))
        for name, first, second, value in (
            ("warn_after_s", "900", "600", 600.0),
            ("act", '"nothing"', '"requeue"', "requeue"),
            ("act_after_s", "1800", "1200", 1200.0),
            ("start_s", "300", "0", 0.0),
            ("time_left_s", "600", "300", 300.0),
        )
    },
    "health.half_life_d": ("14", "7", 7.0, lambda d: d.config.bad_places.half_life_d),
    "health.bad_share": ("0.3", "0.5", 0.5, lambda d: d.config.bad_places.bad_share),
    "health.bad_weight": ("2", "3", 3.0, lambda d: d.config.bad_places.bad_weight),
    "health.bad_places": ('"avoid"', '"show"', "show", lambda d: d.config.bad_places.bad_places),
    "health.xid": (
        '{63="note"}',
        '{63="drain"}',
        {63: "drain"},
        lambda d: d.components.node_validator.config.health.xids,
    ),
    "health.findings": (
        '{gpu_slow="note"}',
        '{gpu_slow="drain"}',
        {"gpu_slow": "drain"},
        lambda d: d.components.node_validator.config.health.findings,
    ),
    "health.check_interval_s": ("60", "30", 30, lambda d: d.components.node_validator.config.health.interval_s),
    "staging.transfers": ("4", "5", 5, lambda d: d.staging.controller.rules.limits.site),
    "staging.transfers_per_user": ("2", "3", 3, lambda d: d.staging.controller.rules.limits.per_user),
    "staging.bandwidth": ('"1G"', '"2G"', 2.0 * GIB, lambda d: d.staging._limits._site.bytes_per_s),
    "staging.user_bandwidth": ('"1G"', '"2G"', 2.0 * GIB, lambda d: d.staging._limits._user_bucket(1).bytes_per_s),
    "staging.cache_size": ('"1G"', '"2G"', 2 * GIB, lambda d: d.staging._garbage_collector.rules.cache_limit_bytes),
    "staging.lifetime_days": ("30", "2", 2 * 86400.0, lambda d: d.staging._garbage_collector.rules.lifetime_s),
    "staging.output_retention_h": (
        "24",
        "1",
        (3600.0, 1.0),
        lambda d: (d.config.tuning.output_retention_s, d.staging._settings.output_retention_h),
    ),
    "staging.output_retention_cost": ("20", "3.5", Decimal("3.5"), lambda d: d.config.tuning.output_retention_cost),
    "staging.retries": ("8", "9", 9, lambda d: d.staging.controller._dispatcher._retries()),
    "staging.check_s": ("1", "2", 2.0, lambda d: d.staging._check.rules.seconds),
    "staging.scratch_max": ('"1G"', '"2G"', 2 * GIB, lambda d: d.staging._check.rules.scratch_max),
    "staging.quota.user": ('"1G"', '"2G"', 2 * GIB, lambda d: d.staging._quota_uses("eve", 9, "p")[0].limit_bytes),
    "staging.quota.project": ('"1G"', '"2G"', 2 * GIB, lambda d: d.staging.usage().quota.project),
    "staging.quota.users": ("{}", '{ada="3G"}', 3 * GIB, lambda d: d.staging._quota_uses("ada", 9, "p")[0].limit_bytes),
    "staging.quota.projects": (
        "{}",
        '{phys="3G"}',
        3 * GIB,
        lambda d: d.staging._quota_uses("eve", 9, "phys")[1].limit_bytes,
    ),
    "staging.container_program": (
        '"/a/run"',
        '"/b/run"',
        "/b/run",
        lambda d: d.staging.controller.rules.containers.program,
    ),
    "staging.workdir.partitions": ('["p"]', '["q"]', ("q",), lambda d: d.staging._settings.workdir.partitions),
    "staging.workdir.max_size": ('"1G"', '"2G"', 2 * GIB, lambda d: d.staging._workdir_rules().max_bytes),
    "staging.workdir.max_files": ("10", "20", 20, lambda d: d.staging._workdir_rules().max_files),
    "staging.workdir.ignore": ('["a"]', '["b"]', ("b",), lambda d: d.staging._workdir_rules().ignore),
    "staging.images.registries": ('["a.io"]', '["b.io"]', ("b.io",), lambda d: d.staging._image_rules().registries),
    "staging.images.dir": ('"/tmp"', '"/srv"', "/srv", lambda d: d.staging._image_rules().limits.folder),
    "staging.images.max_size": ('"1G"', '"2G"', 2 * GIB, lambda d: d.staging._image_rules().limits.max_bytes),
    "staging.images.conversions": ("1", "2", 2, lambda d: d.staging._image_rules().conversions),
    "metrics.exporter_ports": (
        "[9100]",
        "[9100, 9400]",
        (9100, 9400),
        lambda d: d.components.current_settings.settings.metrics.exporter_ports,
    ),
    **{
        f"notify.{name}": (first, second, value, notify(name))
        for name, first, second, value in (
            ("alarms", "true", "false", False),
            ("budgets", "true", "false", False),
            ("jobs", "[]", '["spot"]', ("spot",)),
            ("begin_after_s", "60", "61", 61.0),
            ("end_after_s", "600", "601", 601.0),
            ("program", '"/bin/true"', '"/bin/false"', Path("/bin/false")),
            ("program_timeout_s", "30", "31", 31.0),
            ("mail.host", '"a"', '"b"', "b"),
            ("mail.port", "25", "587", 587),
            ("mail.user", '"a"', '"b"', "b"),
            ("mail.sender", '"a@x"', '"b@x"', "b@x"),
            ("mail.to", '["a@x"]', '["b@x"]', ("b@x",)),
            ("mail.user_domain", '"x"', '"y"', "y"),
        )
    },
    "notify.mail.password_file": (
        '"FOLDER/key"',
        '"FOLDER/key2"',
        "key2",
        lambda d: notify("mail.password_file")(d).name,  # type: ignore[attr-defined]
    ),
    "notify.webhooks": (
        '{team={url_file="FOLDER/key"}}',
        '{team={url_file="FOLDER/key", format="slack"}}',
        "slack",
        lambda d: notify("webhooks")(d)["team"].format,  # type: ignore[index]
    ),
    "volumes.max_size": ('"1G"', '"2G"', 2 * GIB, lambda d: d.staging.volumes.turns.limits.max_size),
    "volumes.user_size": ('"1G"', '"2G"', 2 * GIB, lambda d: d.staging.volumes.turns.limits.user_size),
    "staging.datasets": (
        '{maps={versions={v1="/a"}, latest="v1"}}',
        '{maps={versions={v1="/b"}, latest="v1"}}',
        ("/b", "/b"),
        dataset,
    ),
    "projects.a.account": ('"team-a"', '"team-b"', "team-b", project("account")),
    "projects.a.quota": ("1", '"1/3"', Fraction(1, 3), project("quota")),
    "projects.a.weight": ("1", "2.5", Fraction(5, 2), project("weight")),
    "projects.a.limit": ("8", "9", 9, project("limit")),
    "projects.a.priority": ("0", "-1", -1, project("priority")),
    "projects.a.parent": ('"left"', '"right"', "right", project("parent")),
    "projects.a.partitions": (
        '["p"]',
        '["q"]',
        (("q",), True),
        lambda d: (d.config.projects["a"].partitions, {"q", "q-a", "o-a"} <= set(d.pool.partitions)),
    ),
    "projects.a.features": ('["x"]', '["y"]', ("y",), project("features")),
    "projects.a.interactive_max_s": ("60", "61", 61.0, project("interactive_max_s")),
    "projects.a.min_runtime_s": ("62", "63", 63.0, project("min_runtime_s")),
    "projects.a.reclaim_after_s": ("64", "65", 65.0, project("reclaim_after_s")),
    "projects.a.burst_over_quota": ('"never"', '"budget"', "budget", project("burst_over_quota")),
    "fair_share.overcommit": ("false", "true", True, lambda d: d.config.fair_share.overcommit),
    "fair_share.usage_half_life_s": ("60", "61", 61.0, lambda d: d.config.fair_share.usage_half_life_s),
    "fair_share.usage_factor": ("0", "0.5", 0.5, lambda d: d.config.fair_share.usage_factor),
    "mounts.line_timeout_s": ("300", "60", 60.0, lambda d: d.streams._line_timeout_s()),
    "mounts.sftp_server": ('"/a/sftp"', '"/b/sftp"', Path("/b/sftp"), lambda d: d.streams._sftp_server()),
    "mounts.trees": (
        '{home={path="/home/{user}"}}',
        '{scratch={path="/scratch"}}',
        ("/scratch", {"gpu": ("/scratch",)}, True),
        lambda d: (d.components.mounts._rules[0].path, site("mount_trees")(d), d.pool.exclusive_user),
    ),
}
TABLES = {
    "idle_gpus": "idle_gpus.p.",
    "pools": "pools.gpu.",
    "projects": "projects.a.",
    "frameworks": "frameworks.pytorch-a.",
}
"""Settings that are tables with names, and the one in this test."""
APART = {"pools.gpu.reuse_from", "notify.mail.sendmail", "notify.mail.starttls"}
"""What no file has beside the others: with trees in [mounts], with a host, or without it beside a password, refused."""
OF_FILE = {"slurm.programs", "slurm.keep_partitions", "slurm.resume_timeout_s", "slurm.suspend_timeout_s",
           "slurm.devices"}  # fmt: skip
"""What burstctl alone uses."""
FIXED = """\
cluster = "{cluster}"
[daemon]
state_dir = "FOLDER"
runtime_dir = "FOLDER"
spool_dir = "FOLDER"
workers = {workers}
[slurm]
interface = "commands"
[metrics]
listen = "{listen}"
[notify.mail]
starttls = true
[providers.sky]
kind = "sandbox"
token_file = "FOLDER/key"
[providers.wind]
kind = "sandbox"
token_file = "FOLDER/key"
[staging]
store = "near"
job_dir = "{job_dir}"
[frameworks.b]
modules = ["B"]
check = "true"
limit_s = 1
[projects.left]
partitions = ["{group}"]
features = ["{feature}"]
[projects.right]
partitions = ["{group}"]
features = ["{feature}"]
[projects.b]
parent = "left"
account = "b"
[projects.c]
parent = "right"
account = "c"
[staging.stores.near]
kind = "shared"
path = "FOLDER/store"
[node]
{ssh_key}
"""
WAITING = ("cluster: x -> y", "daemon.workers: 2 -> 3", "staging.job_dir: /one -> /two",
           "node.ssh_key: not set -> /root/key", "metrics.listen:  -> 127.0.0.1:9797")  # fmt: skip


def text(folder: Path, second: bool) -> str:
    """One of the two files: values of the table under their tables."""
    values = {
        "cluster": "y",
        "workers": "3",
        "job_dir": "/two",
        "listen": "127.0.0.1:9797",
        "ssh_key": 'ssh_key = "/root/key"',
        "group": "q",
        "feature": "y",
    }
    first = {
        "cluster": "x",
        "workers": "2",
        "job_dir": "/one",
        "listen": "",
        "ssh_key": "",
        "group": "p",
        "feature": "x",
    }
    fixed = FIXED.format(**(values if second else first))
    tables: dict[str, list[str]] = {}
    name = ""
    for line in fixed.splitlines():
        name = line.strip("[]") if line.startswith("[") else name
        tables.setdefault(name, []).append(line)
    for key, row in TABLE.items():
        table, _, word = key.rpartition(".")
        tables.setdefault(table, [f"[{table}]"]).append(f"{word} = {row[1] if second else row[0]}")
    return "\n".join(line for lines in tables.values() for line in lines).replace("FOLDER", str(folder)) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("daemon")
    for name in ("one", "two", "store"):
        (made / name).mkdir(mode=0o755)
    (made / "checks").mkdir(mode=0o755)
    (made / "checks" / "a").touch(mode=0o755)
    (made / "checks" / "a").write_text("#!/bin/sh\n")
    for name in ("key", "key2"):
        (made / name).touch(mode=0o600)
        (made / name).write_text("k" * 40)
    for name in ("one", "two"):
        (made / f"{name}.in").write_text(f"#cloud-config\n# template {name}\n${{extra}}\n")
    return made


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[AssembledDaemon]:
    toml = folder / "burstd.toml"
    toml.touch(mode=0o644)
    toml.write_text(text(folder, second=False))
    ready = load_and_check(toml)
    with ExitStack() as stack:
        level = logging.getLogger().level
        stack.callback(logging.getLogger().setLevel, level)
        parts = app.assemble(ready, stack)
        yield AssembledDaemon(parts, PolicyReloader(ready, parts.reconciler, parts.store, parts.reload), toml)


@pytest.fixture(scope="module")
def said(daemon: AssembledDaemon, folder: Path) -> str:
    """What the reload says, after which all is looked at."""
    before = {key: row[3](daemon) for key, row in TABLE.items()}
    assert not [key for key, row in TABLE.items() if before[key] == row[2]], "what is there before shows nothing"
    broken = (
        text(folder, second=True).replace("\n[daemon]\n", "\n[daemon]\ntick_s = 0\n", 1).replace("tick_s = 7\n", "")
    )
    daemon.toml.write_text(broken)
    refused = daemon.reloader.reload("test")
    assert not refused.done
    assert refused.text.startswith(f"{daemon.toml} has 1 fault:\n  line 4: daemon.tick_s: ")
    of_daemon = {key: value for key, value in before.items() if key not in OF_FILE}
    assert {key: TABLE[key][3](daemon) for key in of_daemon} == of_daemon
    daemon.toml.write_text(text(folder, second=True))
    taken = daemon.reloader.reload("test")
    assert taken.done, taken.text
    return taken.text


def leaves(model: type[BaseModel], before: str = "", *, waits: bool = False) -> Iterator[tuple[str, bool]]:
    """Every setting that there can be, and whether it is marked as waiting for a restart."""
    for name, info in model.model_fields.items():
        marks = info.json_schema_extra
        late = waits or (isinstance(marks, dict) and bool(marks.get("restart")))
        key, kind = f"{before}{name}", info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{key}.", waits=late)
        elif key in TABLES:
            yield from leaves(Settings.model_fields[name].annotation.__args__[1], TABLES[name], waits=late)  # type: ignore[union-attr]
        else:
            yield key, late


def test_the_table_has_every_setting_that_does_not_wait() -> None:
    there = dict(leaves(Settings))
    assert {key for key, late in there.items() if not late} == (TABLE.keys() | APART) - {"policies.idle.keep_alive_s"}
    assert {line.partition(":")[0] for line in WAITING} <= {key for key, late in there.items() if late}


@pytest.mark.parametrize("key", TABLE)
def test_a_reload_puts_it_in_force(daemon: AssembledDaemon, said: str, key: str) -> None:
    _, _, wanted, look = TABLE[key]
    assert look(daemon) == wanted
    assert key in said


def test_what_waits_is_said_to(said: str) -> None:
    late = [change for change in said.splitlines() if change.endswith(" (waits for a restart)")]
    assert sorted(late) == sorted(f"{line} (waits for a restart)" for line in WAITING)


def test_the_reload_says_what_nodes_in_service_are_not_tested_for(said: str) -> None:
    assert "nodes in service are not tested for b of pool gpu, pytorch-a of pool gpu: drain those that" in said


def changed(model: BaseModel, path: list[str], value: object) -> Any:
    """The same with another value at a path of fields."""
    name, *rest = path
    return model.model_copy(update={name: changed(getattr(model, name), rest, value) if rest else value})


@pytest.mark.parametrize("key", sorted(key for key, late in leaves(Settings) if late))
def test_every_setting_that_is_read_at_the_start_only_says_so_and_stays_as_it_was(key: str) -> None:
    old = Settings(cluster="x")
    value: object = {"new": ProviderSettings(kind="sandbox")} if key in ("providers", "staging.stores") else "new"
    new = changed(old, key.split("."), value)
    lines = diff_settings(old, new).texts()
    assert lines
    assert all(line.startswith(key) and line.endswith(" (waits for a restart)") for line in lines), lines
    assert settings_until_restart(old, new) == old


def test_machines_that_listen_go_on_hearing_of_burstd_and_storage_nodes_never_power_themselves_off(
    daemon: AssembledDaemon, said: str
) -> None:
    """The last: it reloads other settings than the file's."""
    assert said
    settings, context = daemon.components.current_settings.settings, daemon.components.reconciler._executor._context
    assert "poweroff" in context.user_data(daemon.pool, "sky")
    assert "poweroff" not in context.user_data(replace(daemon.pool, name="store:near"), "sky")
    for hours in (0.01, 12.0, 0.0):
        node = settings.node.model_copy(update={"unattended_h": hours})
        daemon.components.reload(settings.model_copy(update={"node": node}))
        assert daemon.components.intervals.life_sign_s == 0.01 * 3600 / 4
    assert "poweroff" not in context.user_data(daemon.pool, "sky")
