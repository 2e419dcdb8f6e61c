"""What burstctl says of settings, without a daemon and without Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run

SETTINGS = """
cluster = "ada"
[providers.sandbox]
kind = "sandbox"
url = "http://127.0.0.1:9"
[pools.gpu]
nodes = "gpu[1-2]"
partitions = ["burst"]
cpus = 8
memory = "1G"
gres = "gpu:v100:4"
offers = [{ provider = "sandbox" }]
"""


def with_secrets(settings: str, folder: Path) -> str:
    """Settings whose files are there."""
    secret = folder / "secret"
    secret.touch(mode=0o600)
    settings = settings.replace('kind = "sandbox"', f'kind = "sandbox"\ntoken_file = "{secret}"')
    return f'{settings}[node]\nmunge_key = "{secret}"\nsentinels = ["/home"]\n'


def test_checks_of_settings_need_no_daemon(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "burstd.toml"
    file.write_text('cluster = "ada"\n[pools.gpu]\nnodes = "gpu[1-2]"\ncpu = 4\n', encoding="utf-8")
    outcome = run("config", "check", str(file))
    assert outcome.code == 1
    assert "line 4: pools.gpu.cpu: there is no such key; did you mean 'cpus'?" in outcome.out
    faults = json.loads(run("config", "check", str(file), "--json").out)["faults"]
    assert {"key": "pools.gpu.memory", "line": 2, "text": "must be set"} in faults


def test_a_key_under_its_former_name_is_a_warning(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "burstd.toml"
    file.write_text(SETTINGS + "[daemon]\ntidy_every_s = 9\n", encoding="utf-8")
    outcome = run("config", "check", str(file), "--no-files")
    assert outcome.code == 0
    assert "daemon.tidy_every_s: is now called daemon.power_down_retry_s" in outcome.out
    [warning] = json.loads(run("config", "check", str(file), "--no-files", "--json").out)["warnings"]
    assert warning["key"] == "daemon.tidy_every_s"


def test_frameworks_are_counted_and_one_that_no_pool_offers_is_a_warning(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "burstd.toml"
    text = SETTINGS + "[frameworks.jax]\nmodules = ['JAX']\n[frameworks.pytorch]\nimage = '/torch.sif'\n"
    file.write_text(text.replace("cpus = 8", 'cpus = 8\nframeworks = ["pytorch"]'), encoding="utf-8")
    outcome = run("config", "check", str(file), "--no-files")
    assert outcome.code == 0
    assert "1 pool, 2 slots, 1 provider, 2 frameworks, policies" in outcome.out
    assert "warning: frameworks.jax: no pool offers it: name it in 'frameworks' of one" in outcome.out
    assert "frameworks.pytorch" not in outcome.out
    assert "Feature=pytorch" in run("slurm-config", "--config", str(file), "--slurm", "24.11").out


def test_rules_of_idle_gpus_without_the_sampler_are_a_warning(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "burstd.toml"
    file.write_text(SETTINGS + "[idle_gpus.gpu]\n[sampler]\nenabled = false\n", encoding="utf-8")
    outcome = run("config", "check", str(file), "--no-files")
    assert outcome.code == 0
    assert "warning: idle_gpus.gpu: warns no job, as sampler.enabled is false: set that to true, or" in outcome.out


def test_programs_for_messages_that_cannot_be_run_are_warnings(run: Run, tmp_path: Path) -> None:
    file, sendmail = tmp_path / "burstd.toml", tmp_path / "sendmail"
    sendmail.touch(mode=0o644)
    notify = f'[notify]\nprogram = "{tmp_path}/none"\n[notify.mail]\nsendmail = "{sendmail}"\n'
    file.write_text(with_secrets(SETTINGS + notify, tmp_path), encoding="utf-8")
    outcome = run("config", "check", str(file))
    assert (
        f"warning: notify.program: the program {tmp_path}/none cannot be used (No such file or directory): no message"
    ) in outcome.out
    assert f"warning: notify.mail.sendmail: {sendmail} is no executable file: no message can be sent" in outcome.out
    sendmail.chmod(0o755)
    assert "notify.mail" not in run("config", "check", str(file)).out
    assert "notify" not in run("config", "check", str(file), "--no-files").out


def test_a_table_of_a_policy_that_is_not_asked_is_a_warning(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "burstd.toml"
    text = SETTINGS + "[policies]\nchain = ['idle']\n[policies.idle]\nkeep_alive_s = 9\n[policies.broker]\n"
    file.write_text(text, encoding="utf-8")
    warnings = json.loads(run("config", "check", str(file), "--no-files", "--json").out)["warnings"]
    assert warnings == [
        {"key": "policies.broker", "line": text.count("\n"), "text": "has no effect: the policy is not in 'chain'"}
    ]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("gpu_maker = 'nvida'", "gpu_maker: must be 'nvidia', 'amd' or 'intel', not 'nvida'; did you mean 'nvidia'?"),
        ("arch = 'x86-64'", "not 'x86-64'; did you mean 'x86_64'?"),
        ("containers = ['Docker', 'aptainer']", "not 'aptainer'; did you mean 'apptainer'?"),
    ],
)
def test_words_that_the_broker_does_not_know(run: Run, tmp_path: Path, line: str, fault: str) -> None:
    file = tmp_path / "burstd.toml"
    file.write_text(
        f"{SETTINGS}[policies]\nchain = ['broker']\n[policies.broker.offers.'*']\n{line}\n", encoding="utf-8"
    )
    out = run("config", "check", str(file), "--no-files").out
    assert "1 fault" in out
    assert fault in out


def test_settings_with_staging(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "burstd.toml"
    text = SETTINGS + '[staging]\nstore = "s"\n[staging.stores.s]\nkind = "shared"\npath = "/s"\n'
    file.write_text(text, encoding="utf-8")
    out = run("config", "check", str(file), "--no-files").out
    assert "1 pool, 2 slots, 1 provider, staging through s (shared), policies backlog, idle, limits." in out
    file.write_text(text.replace('path = "/s"', "pat = 1"), encoding="utf-8")
    out = run("config", "check", str(file), "--no-files").out
    assert "staging.stores.s.pat: there is no such key; did you mean 'path'?" in out


def test_the_lines_for_slurm(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "burstd.toml"
    file.write_text(SETTINGS, encoding="utf-8")
    outcome = run("slurm-config", "--config", str(file), "--slurm", "24.11")
    assert outcome.code == 0, outcome.err
    assert "NodeName=gpu[1-2] CPUs=8 RealMemory=1024 Gres=gpu:v100:4 State=CLOUD" in outcome.out.splitlines()
    assert run("slurm-config", "--gres", "--slurm", "22.05", "--config", str(file)).out.startswith(
        "NodeName=gpu[1-2] Name=gpu Type=v100"
    )
    outcome = run("--json", "slurm-config", "--config", str(file), "--slurm", "22.05")
    assert set(json.loads(outcome.out)) == {"slurm.conf", "gres.conf"}
    assert "JobSubmitPlugins" not in outcome.out
    file.write_text(SETTINGS + '[policies]\nchain = ["broker", "idle"]\n', encoding="utf-8")
    lines = run("slurm-config", "--config", str(file), "--slurm", "24.11").out
    assert "JobSubmitPlugins=lua" in lines.splitlines()
    assert 'local brokered = { "burst" }' in lines
    assert run("slurm-config", "--config", str(file), "--slurm", "new").code == 2
