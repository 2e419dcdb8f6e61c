"""The example file: it loads, it shows every key, and what it says of defaults is true."""

from __future__ import annotations

import importlib
import re
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import get_args

import pytest

import policies
from burstd.domain.health import FINDINGS, XIDS, HealthRules
from burstd.domain.idle_gpus import IdleAct
from burstd.node.checks import CHECK_NAMES
from burstd.node.ssh.host_keys import HostKeyPolicy
from burstd.planner.timeouts import Tuning
from burstd.settings import (
    DaemonSettings,
    NodeSettings,
    QuotaSettings,
    Settings,
    SettingsError,
    SlurmSettings,
    StagingSettings,
    VolumeSettings,
    build_pools,
    load_settings,
    parse_settings,
)
from burstd.settings.fields import Section
from burstd.settings.frameworks import FrameworkSettings
from burstd.settings.idle_gpus import IdleGpuSettings
from burstd.settings.notify import MailSettings, NotifySettings, WebhookSettings
from burstd.settings.projects import FairShareSettings, ProjectSettings
from burstd.settings.sampler import SamplerSettings
from burstd.settings.sections import HostKeyTrust, NodeCheck
from burstd.settings.staging import ImageSettings, WorkdirSettings
from burstd.share import share_path
from burstd.slurm.hostlist import expand
from providers.aws.settings import AwsSettings
from providers.azure.settings import AzureSettings
from providers.openstack.settings import OpenStackSettings

EXAMPLE = share_path("config", "burstd.toml")
_TABLES = "sampler|idle_gpus|web|notify|health|metrics|bill|frameworks|staging|providers|policies|mounts|volumes"
_OPTIONAL = f"{_TABLES}|projects|fair_share|rates|site"
ALL_SET = re.sub(rf"(?m)^#(?=[a-z_0-9]+ = |\[({_OPTIONAL}))", "", EXAMPLE.read_text())


def _is_policy(path: Path) -> bool:
    return "\nplugin = PolicyPlugin(" in path.read_text()


# Keys without a default of their own: the example shows what one would write.
SHOWN_ONLY = {"bin_dir", "conf", "ssh_key", "munge_socket", "user_data", "check_folder", "file_sd", "shared_dir"}


def test_the_example_loads_as_it_is() -> None:
    settings = load_settings(EXAMPLE, check_files=False)
    assert settings.database == "/var/lib/burstd/burstd.db"
    made = build_pools(settings, expand)
    assert (len(made["cpu"].slots), made["cpu"].shape.memory_mib) == (16, 30720)
    assert (made["gpu"].slots[-1], made["gpu"].shape.gpus()) == ("burst-gpu008", 4)
    assert made["gpu"].rules[0].markets == ("on-demand", "spot")


@pytest.mark.parametrize(
    ("table", "model"), [("daemon", DaemonSettings), ("slurm", SlurmSettings), ("node", NodeSettings)]
)
def test_the_example_shows_every_key_with_its_default(
    table: str, model: type[DaemonSettings | SlurmSettings | NodeSettings]
) -> None:
    shown = tomllib.loads(ALL_SET)[table]
    assert set(shown) == set(model.model_fields)
    assert not set(tomllib.loads(EXAMPLE.read_text())[table]), "the example must not set what is the default"
    defaults, set_all = getattr(parse_settings(EXAMPLE.read_text()), table), getattr(parse_settings(ALL_SET), table)
    for key in set(shown) - SHOWN_ONLY:
        assert getattr(set_all, key) == getattr(defaults, key), key
    for key in SHOWN_ONLY & set(shown):
        assert getattr(defaults, key) is None, key


def test_the_example_shows_every_key_of_staging_and_leaves_it_off() -> None:
    assert not load_settings(EXAMPLE, check_files=False).staging.enabled
    shown, staging = tomllib.loads(ALL_SET)["staging"], parse_settings(ALL_SET).staging
    assert set(shown) == set(StagingSettings.model_fields)
    assert staging.store in staging.stores
    for key in set(shown) - {"store", "stores", "quota", "datasets", "workdir", "images"}:
        default = StagingSettings.model_fields[key].default
        assert default is None or getattr(staging, key) == default, key
    assert set(shown["quota"]) == set(QuotaSettings.model_fields)
    assert set(shown["workdir"]) == set(WorkdirSettings.model_fields)
    assert staging.workdir == WorkdirSettings()
    assert set(shown["images"]) == set(ImageSettings.model_fields)
    assert staging.images == ImageSettings()
    assert staging.datasets["imagenet"].version_source() == "s3://site-data/imagenet-2021"


def test_the_examples_of_verdicts_are_what_comes_of_it_anyway() -> None:
    assert parse_settings(EXAMPLE.read_text()).health.xid == {}
    health = parse_settings(ALL_SET).health
    assert (health.xid, health.check_interval_s) == ({"63": XIDS[63]}, HealthRules().interval_s)
    assert health.findings == {"gpu_slow": FINDINGS["gpu_slow"].verdict}


def test_the_example_shows_every_key_of_the_sampler_with_its_default() -> None:
    assert set(tomllib.loads(ALL_SET)["sampler"]) == set(SamplerSettings.model_fields)
    assert parse_settings(ALL_SET).sampler == SamplerSettings()


def test_the_example_shows_every_key_of_notify_and_leaves_it_off() -> None:
    shown = tomllib.loads(ALL_SET)["notify"]
    assert set(shown) == set(NotifySettings.model_fields)
    assert set(shown["mail"]) == set(MailSettings.model_fields) - {"sendmail"}
    assert set(shown["webhooks"]["team"]) == set(WebhookSettings.model_fields)
    found, default = parse_settings(ALL_SET).notify, NotifySettings()
    others = {"program", "mail", "webhooks"}
    assert found.model_dump(exclude=others) == default.model_dump(exclude=others)
    assert load_settings(EXAMPLE, check_files=False).notify == default


def test_the_example_shows_every_key_of_idle_gpus_and_has_none() -> None:
    assert not load_settings(EXAMPLE, check_files=False).idle_gpus
    assert set(tomllib.loads(ALL_SET)["idle_gpus"]["*"]) == set(IdleGpuSettings.model_fields)
    found = parse_settings(ALL_SET).idle_gpus
    assert found["*"] == IdleGpuSettings()
    assert found["interactive"].rule().act is IdleAct.SHORTEN


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ('[idle_gpus."*"]\nact = "cancel"', "line 3: idle_gpus.\"*\".act: must not be 'cancel' for all partitions"),
        ('[idle_gpus.gpu]\nact = "requeue"\nact_after_s = 900', "line 4: idle_gpus.gpu.act_after_s: must be more than"),
        ('[idle_gpus."a,b"]', "must be the name of one partition"),
        ('[idle_gpus.gpu]\nact = "kill"', "line 3: idle_gpus.gpu.act: "),
        ("[idle_gpus.gpu]\nwarn_after_s = 0", "line 3: idle_gpus.gpu.warn_after_s: "),
        (
            "[idle_gpus.gpu]\n[sampler]\ncollect_s = 301",
            "line 4: sampler.collect_s: must be 300 at most with [idle_gpus.gpu]",
        ),
    ],
)
def test_a_rule_of_idle_gpus_that_cannot_be_meant_is_refused(table: str, fault: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(f'cluster = "x"\n{table}\n')
    assert fault in str(caught.value)


def test_the_example_shows_every_key_of_frameworks_and_has_none() -> None:
    assert not load_settings(EXAMPLE, check_files=False).frameworks
    found = parse_settings(ALL_SET).frameworks
    assert {key for one in found.values() for key in one.model_fields_set} == set(FrameworkSettings.model_fields)
    assert {one.limit_s for one in found.values()} == {FrameworkSettings.model_fields["limit_s"].default}


def test_the_example_shows_every_key_of_volumes_and_leaves_them_off() -> None:
    assert not load_settings(EXAMPLE, check_files=False).volumes.prices
    assert set(tomllib.loads(ALL_SET)["volumes"]) == set(VolumeSettings.model_fields)
    assert parse_settings(ALL_SET).volumes.prices == {"sandbox": Decimal("0.08")}


def test_the_example_shows_every_key_of_projects_and_has_none() -> None:
    assert not load_settings(EXAMPLE, check_files=False).projects
    shown, found = tomllib.loads(ALL_SET), parse_settings(ALL_SET)
    assert {key for project in shown["projects"].values() for key in project} == set(ProjectSettings.model_fields)
    assert set(shown["fair_share"]) == set(FairShareSettings.model_fields)
    assert found.fair_share == FairShareSettings()
    defaults = ProjectSettings()
    for key in ("priority", "min_runtime_s", "reclaim_after_s", "burst_over_quota"):
        assert getattr(found.projects["atlas"], key) == getattr(defaults, key), key


@pytest.mark.parametrize("model", [AwsSettings, AzureSettings, OpenStackSettings])
def test_the_example_of_each_provider_is_right(model: type[AwsSettings | AzureSettings | OpenStackSettings]) -> None:
    table = tomllib.loads(ALL_SET)["providers"][model.__name__.removesuffix("Settings").lower()]
    assert model.model_validate({key: value for key, value in table.items() if key != "kind"}).image == table["image"]


@pytest.mark.parametrize("name", sorted(p.stem for p in Path(policies.__file__).parent.glob("*.py") if _is_policy(p)))
def test_the_example_shows_every_key_of_each_policy(name: str) -> None:
    assert tomllib.loads(EXAMPLE.read_text())["policies"] == {}, "the example must not set what is the default"
    plugin = importlib.import_module(f"policies.{name}").plugin
    shown = tomllib.loads(ALL_SET)["policies"][name]
    assert set(shown) == set(plugin.settings.model_fields)
    found, default = plugin.settings.model_validate(shown), plugin.settings()
    for key in shown:
        assert getattr(default, key) in (None, {}) or getattr(found, key) == getattr(default, key), key


def test_the_example_marks_what_waits_for_a_restart() -> None:
    text = EXAMPLE.read_text()
    for model in (DaemonSettings, SlurmSettings, NodeSettings, StagingSettings, VolumeSettings, Settings):
        for key, info in model.model_fields.items():
            if isinstance(info.default, Section):
                continue
            waits = isinstance(info.json_schema_extra, dict) and bool(info.json_schema_extra.get("restart"))
            comment = re.search(rf"(?m)((?:^# .*\n)+)^#?(?:{key} =|\[(?:staging\.)?{key}\.)", text)
            if comment is not None:
                assert ("(restart)" in comment[1]) == waits, key
            else:
                assert not waits, key


def test_every_time_and_limit_of_the_core_can_be_set() -> None:
    settings = parse_settings('cluster = "x"')
    assert settings.tuning == Tuning()
    changed = parse_settings('cluster = "x"\n[slurm]\ngate = "g"\nbind_depth = 7\n[daemon]\nboot_timeout_s = 9\n')
    assert (changed.tuning.gate, changed.tuning.bind_depth, changed.tuning.boot_timeout_s) == ("g", 7, 9.0)


def test_words_that_other_rooms_know_too_are_the_same() -> None:
    assert set(get_args(NodeCheck)) == CHECK_NAMES
    assert set(get_args(HostKeyTrust)) == {t.value for t in HostKeyPolicy}
