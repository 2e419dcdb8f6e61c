"""burstctl init: what is asked, and the files that it writes. The whole of it runs in tests/docs."""

from __future__ import annotations

import ipaddress
import pwd
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.cli.setup import commands
from burstd.cli.setup.answers import SANDBOX_POOLS, AnswerRefused, Answers, Site, parse_key, parse_pool, settings_text
from burstd.cli.setup.head import Head, drop_ins
from burstd.cli.setup.journal import back_up, read_text, write_whole
from burstd.cli.setup.prepare import hosts_commands
from burstd.settings import build_pools
from burstd.settings.load import parse_settings
from burstd.slurm.hostlist import expand
from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.trial import free_subnet, start_script, suite_for

SITE = Site("site", "/opt/burstd/bin", "10.0.0.5", ["main"], ["slurm"], ["echo '10.0.0.5 head' >>/etc/hosts"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nodes=4", "name and type are missing"),
        ("name=gpu,type=g5,colour=red", "'colour' is no key"),
        ("name=GPU,type=g5", "name 'GPU' must be small letters, digits and hyphens"),
        ("name=gpu,type=g5,cpus=four", "nodes, cpus and memory (MiB) are whole numbers"),
        ("name=gpu,type=g5,nodes=0", "a pool has one node at least"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(text: str, says: str) -> None:
    with pytest.raises(AnswerRefused) as refused:
        parse_pool(text)
    assert says in str(refused.value)


def test_answers_become_settings() -> None:
    pool = parse_pool("name=gpu,nodes=3,type=g5.xlarge,cpus=4,memory=15000,gres=gpu:a10g:1,nvme:1")
    keys = dict(
        parse_key(text) for text in ("region=eu-central-1", "page=50", 'subnets=["a", "b"]', "tags={ a = 'b' }")
    )
    assert keys == {"region": "eu-central-1", "page": 50, "subnets": ["a", "b"], "tags": {"a": "b"}}
    text = settings_text(Answers("aws", keys, "ami-1", [pool], "cloud", limit=2, budget="500", currency="USD"), SITE)
    settings = parse_settings(text)
    made = build_pools(settings, expand)["gpu"]
    assert made.slots == ("burst-gpu1", "burst-gpu2", "burst-gpu3")
    assert [str(gres) for gres in made.shape.gres] == ["gpu:a10g:1", "nvme:1"]
    assert settings.providers["aws"].plugin_settings == keys
    assert settings.policies.policy_tables["limits"] == {"nodes": 2}
    assert settings.policies.policy_tables["budget"] == {"limit": "500", "currency": "USD"}
    assert settings.mounts.trees["home"].path == "{home}"
    assert settings.node.commands == ("echo '10.0.0.5 head' >>/etc/hosts",)
    plain = parse_settings(settings_text(Answers(pools=SANDBOX_POOLS, trees={}), replace(SITE, commands=())))
    assert plain.policies.policy_tables["limits"] == {"nodes": 8}
    assert not plain.mounts.trees


@pytest.mark.parametrize("budget", ["much", "500EUR", "-5", "nan"])
def test_a_budget_that_is_no_amount_is_refused(budget: str) -> None:
    with pytest.raises(AnswerRefused, match=f"--budget '{budget}': write an amount, or an amount and a currency"):
        commands._answers("sandbox", [], [], image="", partition="burst", trees=True, nodes=0, budget=budget, yes=True)


def test_a_key_without_a_value_is_refused() -> None:
    with pytest.raises(AnswerRefused, match=r"--set 'region': write KEY=VALUE"):
        parse_key("region")


@pytest.mark.parametrize(
    ("slurm", "suite", "exact"),
    [
        ((22, 5), "bookworm", True), ((23, 11), "bookworm", False), ((24, 11), "trixie", True),
        ((25, 11), "trixie", False), ((26, 5), "forky", True),
    ],
)  # fmt: skip
def test_the_machines_have_a_slurmd_that_slurmctld_takes(slurm: tuple[int, int], suite: str, exact: bool) -> None:
    assert suite_for(slurm) == (suite, exact)


@pytest.mark.parametrize("slurm", [(21, 8), (24, 5), (27, 5)])
def test_for_another_slurm_there_is_no_sandbox(slurm: tuple[int, int]) -> None:
    with pytest.raises(SandboxError, match="no Debian release has a slurmd for slurmctld"):
        suite_for(slurm)


def test_the_sandboxs_slurmd_uses_no_cgroups_and_no_programs_of_the_site(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text(start_script())
    subprocess.run(["sh", "-n", script], check=True)
    first = start_script().partition("\n# Starts slurmd in a pod")[0]
    said = subprocess.run(
        ["sh", "-c", f'{first}\necho "$BURSTD_SLURM_CONF"'], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == [
        "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "JobAcctGatherType=jobacct_gather/linux",
        "Prolog=/bin/true", "Epilog=/bin/true", "TaskProlog=/bin/true", "TaskEpilog=/bin/true",
        "HealthCheckProgram=/bin/true", "SlurmdLogFile=/var/log/slurm/slurmd.log",
    ]  # fmt: skip


def test_the_sandbox_takes_a_network_that_is_not_in_use() -> None:
    used = [ipaddress.IPv4Network(text) for text in ("192.168.0.0/24", "10.177.8.0/24", "10.178.0.1/32")]
    assert free_subnet(used) == "10.179.0.0/16"
    with pytest.raises(SandboxError, match="are in use"):
        free_subnet([ipaddress.IPv4Network("10.0.0.0/8")])


@pytest.mark.parametrize(
    ("config", "host", "cluster"),
    [
        ({"SlurmctldHost[0]": "head(10.0.0.5)", "ClusterName": "Big_Iron"}, ("head", "10.0.0.5"), "big-iron"),
        ({"SlurmctldHost[0]": "head", "ClusterName": "a"}, ("head", ""), "a"),
        ({}, ("", ""), "cluster"),
    ],
)
def test_what_the_running_slurm_says(config: dict[str, str], host: tuple[str, str], cluster: str) -> None:
    head = Head(config, (24, 11, 5), {})
    assert (head.host, head.cluster) == (host, cluster)


def test_units_belong_to_slurm_user() -> None:
    def user(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", 500, 500, "", "/", "/bin/sh"))

    units = ["burstd.service", "burstd.socket", "burstd-mount-worker.socket"]
    assert drop_ins(user("slurm"), "slurm", units) == {}
    made = {str(path): text for path, text in drop_ins(user("hpc"), "ops", units).items()}
    assert "\nUser=hpc\nGroup=ops\n" in made["/etc/systemd/system/burstd.service.d/slurm-user.conf"]
    socket = made["/etc/systemd/system/burstd-mount-worker.socket.d/slurm-user.conf"]
    assert (len(made), socket) == (2, "[Socket]\nSocketUser=hpc\n")


def test_a_machine_knows_the_head_by_its_name(tmp_path: Path) -> None:
    assert hosts_commands("10.0.0.5", "head") == ['echo "10.0.0.5 head" >>/etc/hosts']
    assert hosts_commands("head", "head") == []
    (command,) = hosts_commands("localhost", "head")
    file = tmp_path / "hosts"
    subprocess.run(["sh", "-c", command.replace("/etc/hosts", str(file))], check=True)
    assert file.read_text(encoding="utf-8") == "127.0.0.1 head\n"


def test_a_file_is_replaced_whole_with_its_mode_and_through_its_link(tmp_path: Path) -> None:
    file, link = tmp_path / "slurm.conf.real", tmp_path / "slurm.conf"
    file.write_bytes(b"A=\xff\n")
    file.chmod(0o640)
    link.symlink_to(file)
    back_up(link, tmp_path / "backup")
    write_whole(link, read_text(link) + "B=1\n")
    assert link.is_symlink()
    assert file.read_bytes() == b"A=\xff\nB=1\n"
    assert (file.stat().st_mode & 0o777, (tmp_path / "backup").stat().st_mode & 0o777) == (0o640, 0o640)
    assert (tmp_path / "backup").read_bytes() == b"A=\xff\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "slurm.conf", "slurm.conf.real"]
    assert read_text(tmp_path / "none") == ""


def test_a_disk_without_room_is_named_by_the_file_that_it_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "slurm.conf"
    file.write_text("A=1\n")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match=rf"^\[Errno 28\] No space left on device: '{file}'$"):
        write_whole(file, "B=1\n")
    assert [path.name for path in tmp_path.iterdir()] == ["slurm.conf"]
    assert read_text(file) == "A=1\n"
