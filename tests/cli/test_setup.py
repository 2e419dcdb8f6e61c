"""burstctl init: what is asked, and the files that it writes. The whole of it runs in tests/docs."""

from __future__ import annotations

import ipaddress
import json
import pwd
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from burstd.cli.main import app
from burstd.cli.setup import commands, journal, prepare, steps
from burstd.cli.setup.answers import SANDBOX_POOLS, AnswerRefused, Answers, Site, parse_key, parse_pool, settings_text
from burstd.cli.setup.head import Head, SetupRefused, drop_ins
from burstd.cli.setup.journal import Journal, back_up, read_text, write_whole
from burstd.cli.setup.prepare import hosts_commands
from burstd.settings import build_pools
from burstd.settings.load import parse_settings
from burstd.share import share_path
from burstd.slurm.config.render import SlurmConfOptions
from burstd.slurm.hostlist import expand
from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.trial import free_subnet, start_script, suite_for, used_networks

SITE = Site("site", "/opt/burstd/bin", "10.0.0.5", ["main"], ["slurm"], ["echo '10.0.0.5 head' >>/etc/hosts"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nodes=4", "name and type are missing"),
        ("name=gpu,type=g5,colour=red", "'colour' is no key"),
        ("name=GPU,type=g5", "name 'GPU' must be small letters, digits and hyphens"),
        ("name=gpu,type=g5,cpus=four", "nodes, cpus and memory (MiB) are whole numbers"),
        ("name=gpu,type=g5,nodes=0", "a pool has one node at least"),
        ("name=gpu,type=g5 large", "type 'g5 large' has blanks, commas, quotes or '\\'"),
        ("name=gpu,type=g5,gres=gpu:a10g", "write gres as Slurm does, with its number: gres=gpu:a10g:1"),
        ("name=gpu,type=g5,gres=gpu:a10g:1 CPUs=9", "write gres as Slurm does, with its number: gres=gpu:a10g:1"),
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


_PARTITION = "write the name of one partition, without blanks, commas, quotes, '=', '#' and '\\'"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--partition", "bad,name"], f"--partition 'bad,name': {_PARTITION}"),
        (["--partition", "a b"], f"--partition 'a b': {_PARTITION}"),
        (["--partition", "ALL"], f"--partition 'ALL': {_PARTITION}"),
        (["--partition", ""], f"--partition '': {_PARTITION}"),
        (["--image", "a\nb"], "--image 'a\\nb': write it without control characters"),
        (["--budget", "5 eur"], "--budget '5 eur': write an amount, or an amount and a currency: '500 USD'"),
        (["--address", "head; reboot"], "--address 'head; reboot': write HOST, or HOST:PORT"),
        (["--set", "a b=1"], "--set 'a b=1': write KEY=VALUE, the key in letters, digits, '_' and '-'"),
        (["--set", "region"], "--set 'region': write KEY=VALUE, the key in letters, digits, '_' and '-'"),
        (["--user", "no-such-user"], "There is no user no-such-user here; say another with --user"),
    ],
)
def test_an_answer_that_cannot_be_is_refused_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.setattr(commands, "require_root", lambda: None)
    monkeypatch.setattr(commands, "read_head", lambda: Head({}, (24, 11, 5), {}))
    monkeypatch.setattr(commands, "_undo_unfinished", lambda *_: None)
    done = CliRunner().invoke(app, ["init", "--dry-run", *words])
    assert done.output == f"burstctl: {says}.\n"
    assert done.exit_code


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


def test_an_address_of_lo_and_of_an_interface_that_is_down_is_in_use() -> None:
    routes = [{"dst": "default"}, {"type": "local", "dst": "10.177.0.1", "dev": "lo"}, {"dst": "10.178.4.0/24"}]
    down = {"ifname": "eth9", "addr_info": [{"local": "10.179.3.1", "prefixlen": 24}]}
    peer = {"ifname": "tun0", "addr_info": [{"local": "10.9.0.1", "address": "10.180.0.1", "prefixlen": 32}]}
    used = used_networks(json.dumps(routes), json.dumps([down, peer, {"ifname": "eth1"}]))
    assert free_subnet(used) == "10.181.0.0/16"
    assert used_networks("", "") == []


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


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(journal, "JOURNAL", tmp_path / "init.json")
    return tmp_path / "slurm.conf"


BROKERED = SlurmConfOptions(programs="/usr/lib/burstd", brokered_partitions=("burst",))
LINE = 'local brokered = { "burst" }'


def submit(conf: Path) -> tuple[dict[str, str], list[str]]:
    """What init writes for jobs' submission, by name, and what it tells."""
    notes: list[str] = []
    written = prepare._job_submit(conf, BROKERED, notes)
    return {path.name: text for path, text in written.items()}, notes


def test_job_submit_lua_is_written_with_the_lines_of_the_site(conf: Path) -> None:
    written, notes = submit(conf)
    lines = written["job_submit.lua"].splitlines()
    assert {LINE, 'local client = "/usr/lib/burstd/burstd-stage"', "local staged = {}"} <= set(lines)
    assert (list(written), notes) == (["job_submit.lua"], [])
    conf.with_name("job_submit.lua").write_text("older\n")
    Journal(finished=True, created=[str(conf.with_name("job_submit.lua"))]).save()
    assert submit(conf) == (written, [])  # init's own, which 'init --keep' writes anew


def test_a_job_submit_lua_of_the_sites_own_stays_and_is_told_what_to_call(conf: Path) -> None:
    theirs, ours = conf.with_name("job_submit.lua"), conf.with_name("burstd_job_submit.lua")
    theirs.write_text("function slurm_job_submit() return slurm.SUCCESS end\n")
    written, notes = submit(conf)
    assert list(written) == ["burstd_job_submit.lua"]
    assert notes == [
        (
            f"{theirs} is the site's own and stays. Put these lines first into its slurm_job_submit:\n"
            f'  burstd_job_submit = burstd_job_submit or dofile("{ours}")\n'
            "  if burstd_job_submit(job_desc, submit_uid, part_list) ~= slurm.SUCCESS then return slurm.ERROR end"
        )
    ]
    theirs.write_text(f'burstd_job_submit = dofile("{ours}")\n')
    assert submit(conf) == (written, [])
    ours.write_text("local brokered = {}\n")
    assert submit(conf) == ({}, [f"{ours} stays, and lacks the line: {LINE}"])
    ours.write_text(f"{LINE}\n")
    assert submit(conf) == ({}, [])
    theirs.write_text(read_text(share_path("config", "slurm", "job_submit.lua")))
    assert submit(conf) == ({}, [f"{theirs} stays, and lacks the line: {LINE}"])


def test_a_burstd_job_submit_lua_that_is_called_stays_at_uninit(conf: Path) -> None:
    ours = conf.with_name("burstd_job_submit.lua")
    conf.with_name("job_submit.lua").write_text("function slurm_job_submit() end\n")
    assert not steps._is_called(ours)
    conf.with_name("job_submit.lua").write_text(f'burstd_job_submit = dofile("{ours}")\n')
    assert steps._is_called(ours)
    assert not steps._is_called(conf)


RUNNING = {
    "SelectType": "select/cons_tres", "AuthType": "auth/munge", "SlurmUser": "daemon(1)", "SlurmctldPort": "6817"
}  # fmt: skip


def test_what_slurmctld_takes_only_when_it_is_restarted_is_told(conf: Path) -> None:
    def unlike(text: str) -> list[str]:
        conf.write_text(text)
        return prepare._unlike_running(Head({**RUNNING, "SLURM_CONF": str(conf)}, (24, 11, 5), {}), {conf: text})

    assert unlike("SelectType=select/cons_tres\nSlurmUser=1\nslurmctldport=6817 AuthType=auth/munge\n") == []
    assert unlike("ClusterName=a\nSlurmctldPort=7000\n") == [
        f"{conf}, line 2 has SlurmctldPort=7000, and slurmctld runs with 6817: its restart takes the first"
    ]
    with pytest.raises(SetupRefused) as refused:
        unlike("SelectType=select/cons_res\n")
    assert str(refused.value) == (
        f"{conf}, line 1 has SelectType=select/cons_res, and slurmctld runs with select/cons_tres: its restart takes "
        "the first; slurm.conf has SelectType=select/cons_res, and burstd needs select/cons_tres: change it while no "
        "job runs"
    )
