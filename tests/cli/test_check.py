"""What burstctl check says of the running Slurm and of this host."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.domain.command import ClearReference, SetReference
from burstd.domain.errors import NodeNotReady
from burstd.domain.plan import Plan
from burstd.node.expected import CheckFailure
from burstd.node.reference import Reference
from tests.api.fake_backend import FakeBackend
from tests.api.world import NOW, SNAPSHOT
from tests.node.test_munge import CREDENTIAL, KEY
from tests.reach import let_others_in

from .conftest import NOBODY, Run
from .test_config_check import SETTINGS, with_secrets

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gets users' rights")


def slurm_that_says(folder: Path, config: str, nodes: str, partitions: str) -> Path:
    """A folder with an scontrol and an sinfo that give these answers; returns settings that name it."""
    for name, text in (("config", config), ("node", nodes), ("partition", partitions)):
        (folder / name).write_text(text, encoding="utf-8")
    scontrol = folder / "scontrol"
    scontrol.write_text(f'#!/bin/sh\nfor last; do :; done\nexec cat "{folder}/$last"\n', encoding="utf-8")
    scontrol.chmod(0o755)
    names = "\n".join(line.split()[0].removeprefix("NodeName=") for line in nodes.splitlines())
    (folder / "sinfo").write_text(f"#!/bin/sh\necho '{names}'\n", encoding="utf-8")
    (folder / "sinfo").chmod(0o755)
    file = folder / "burstd.toml"
    file.write_text(SETTINGS + f'[slurm]\nbin_dir = "{folder}"\n', encoding="utf-8")
    return file


def fitting_slurm(run: Run, folder: Path) -> tuple[Path, list[str], list[str], list[str], str]:
    """A Slurm that has what SETTINGS need: the settings with it, lines of slurm-config, settings, nodes, partition."""
    (folder / "plain.toml").write_text(SETTINGS, encoding="utf-8")
    lines = run("slurm-config", "--config", str(folder / "plain.toml"), "--slurm", "22.05").out.splitlines()
    wanted = [line for line in lines if line and not line.startswith(("#", "NodeName", "Partition"))]
    config = [line.replace("=", " = ", 1) for line in wanted]
    config += ["SLURM_VERSION = 22.05.8", "SelectType = select/cons_tres"]
    node = "NodeName={} CPUAlloc=0 CPUTot=8 RealMemory=1024 AllocMem=0 Gres=gpu:v100:4 State=IDLE+CLOUD+POWERED_DOWN"
    nodes = [node.format(name) for name in ("gpu1", "gpu2")]
    partition = "PartitionName=burst Nodes=gpu[1-2] State=UP"
    file = slurm_that_says(folder, "\n".join(config), "\n".join(nodes), partition)
    file.write_text(with_secrets(file.read_text(encoding="utf-8"), folder), encoding="utf-8")
    return file, lines, config, nodes, partition


def test_the_running_slurm_is_compared(run: Run, tmp_path: Path, backend: FakeBackend) -> None:
    file, lines, config, nodes, partition = fitting_slurm(run, tmp_path)
    outcome = run("check", "--config", str(file))
    first, *nodes_compared = outcome.out.splitlines()
    assert (first, outcome.code) == ("Slurm 22.05.8 has what the pools need.", 0)
    assert nodes_compared == [
        "There is no reference for the nodes' software: choose one with 'burstctl node reference NODE'.",
        "3 nodes in service are as validation wants.",
    ]
    older = CheckFailure("glibc", "2.36 or newer", "2.31", "Take a newer image")
    backend.validator.found = {
        "gpu1": [older, CheckFailure("kernel", "6.1", "5.14", "Build it anew", allowed=True)], "gpu2": [older],
        "gpu4": NodeNotReady("it hung up"),
    }  # fmt: skip
    outcome = run("check", "--config", str(file))
    assert outcome.code == 1
    assert outcome.out.splitlines()[2:] == [
        "gpu4: not compared: it hung up",
        "",
        "gpu[1-2]: glibc: wanted 2.36 or newer, found 2.31",
        "  Remedy: Take a newer image.",
        "",
        "gpu1: kernel: wanted 6.1, found 5.14 (which may differ)",
        "  Remedy: Build it anew.",
    ]
    away = run("check", "--config", str(file), "--socket", str(tmp_path / "none.sock"))
    assert "Nodes in service are not compared: There is no socket" in away.out
    assert run("slurm-config", "--config", str(file)).out.splitlines() == lines

    config = [line for line in config if not line.startswith("SuspendTime ")] + ["SuspendTime = 300 sec"]
    slurm_that_says(tmp_path, "\n".join(config), nodes[0], partition)
    file.write_text(with_secrets(file.read_text(encoding="utf-8"), tmp_path), encoding="utf-8")
    outcome = run("check", "--config", str(file))
    assert outcome.code == 1
    assert re.search(r"^SuspendTime: wanted 31536000.*, found 300 sec$", outcome.out, re.MULTILINE)
    assert "\nnodes gpu2: wanted " in outcome.out
    found = json.loads(run("check", "--json", "--config", str(file)).out)
    assert (found["ok"], {f["subject"] for f in found["findings"]}) == (False, {"SuspendTime", "nodes gpu2"})


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        (
            'provider = "sandbox"',
            'provider = "sandbox", instance_types = ["g44"]',
            1,
            (
                "The pools lack 1 thing (Slurm 22.05.8):||"
                "pools.gpu.offers[0]: wanted instance types g44, found sandbox has none|"
                "  As it is: no machine can be launched for pool gpu.|"
                "  Remedy: correct instance_types; the nearest is g4."
            ),
        ),
        (
            'provider = "sandbox"',
            'provider = "sandbox", instance_types = ["g4", "c*"]',
            0,
            (
                "Slurm 22.05.8 has what the pools need.|Recommended:||"
                "pools.gpu.offers[0]: wanted machines of 8 CPUs, 1024 MiB, gpu:v100:4, found c4 smaller than the "
                "pool's slots: 4 CPUs of 8, 0 gpu:v100 of 4|  As it is: it has no effect.|"
                "  Remedy: name g4, g8 in instance_types, or make cpus, memory and gres of pool gpu agree with its "
                "machines, here and in slurm.conf."
            ),
        ),
        (
            "sandbox]",
            "sky]",
            1,
            (
                "The pools lack 1 thing (Slurm 22.05.8):||"
                "provider sky: wanted an answer, found instances cannot be read: no answer; offers cannot be read: no "
                "answer from keystone within 10 s|"
                "  As it is: no machine is launched there.|"
                "  Remedy: follow 'burstctl provider check sky'."
            ),
        ),
        (
            "sandbox]",
            "fog]",
            0,
            (
                "Slurm 22.05.8 has what the pools need.|"
                "The offers of fog are not compared: There is no provider 'fog'; there are: sandbox, sky."
            ),
        ),
    ],
)
def test_offers_are_compared_with_the_pools(run: Run, tmp_path: Path, old: str, new: str, code: int, said: str) -> None:
    file, *_ = fitting_slurm(run, tmp_path)
    text = file.read_text(encoding="utf-8").replace(old, new)
    if old == "sandbox]":
        text = text.replace('provider = "sandbox"', f'provider = "{new[:-1]}"')
    file.write_text(text, encoding="utf-8")
    outcome = run("check", "--config", str(file), columns=300)
    lines = said.split("|")
    assert (outcome.code, outcome.out.split("\nThere is no reference")[0].splitlines()) == (code, lines)


def test_offers_that_the_daemon_has_not_read_yet_are_no_fault(run: Run, tmp_path: Path, backend: FakeBackend) -> None:
    file, *_ = fitting_slurm(run, tmp_path)
    backend.loop = replace(SNAPSHOT, clouds={}), Plan()
    outcome = run("check", "--config", str(file))
    assert outcome.code == 0
    assert "The offers of sandbox are not compared: not read yet." in outcome.out.splitlines()


def test_a_slurm_that_does_not_answer(run: Run, tmp_path: Path) -> None:
    file = slurm_that_says(tmp_path, "", "", "")
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        "#!/bin/sh\necho 'slurm_load: Unable to contact slurm controller' >&2; exit 1\n", encoding="utf-8"
    )
    outcome = run("check", "--config", str(file))
    assert (outcome.code, outcome.out) == (3, "")
    assert "Slurm cannot be asked: slurmctld does not answer scontrol" in outcome.err
    before = scontrol.read_text(encoding="utf-8")
    scontrol.write_text(before.replace("Unable to contact slurm controller", "Protocol authentication error"), "utf-8")
    assert " ".join(run("check", "--config", str(file)).err.split()) == (
        "burstctl: Slurm cannot be asked: slurmctld does not answer scontrol: slurm_load: Protocol authentication "
        "error; see that munged runs here ('systemctl status munge') with the key of slurmctld's host."
    )
    scontrol.write_text(before, encoding="utf-8")
    outcome = run("slurm-config", "--config", str(file))
    assert "PrivateData=cloud" in outcome.out
    assert "the lines for Slurm 22.05 (choose with --slurm), since slurmctld does not answer" in outcome.err


SRUN = """#!/bin/sh
[ "$1" = --nodelist=cn17 ] && [ "$2" = --partition=main ] || exit 1
while [ "$1" != -c ]; do shift; done
exec sh -c "$2"
"""


def test_a_node_of_the_site_becomes_the_reference(run: Run, tmp_path: Path, backend: FakeBackend) -> None:
    file = slurm_that_says(tmp_path, "", "", "")
    (tmp_path / "cn17").write_text("NodeName=cn17 Arch=x86_64 Partitions=main,long \n", encoding="utf-8")
    (tmp_path / "srun").write_text(SRUN, encoding="utf-8")
    (tmp_path / "srun").chmod(0o755)
    outcome = run("node", "reference", "cn17", "--config", str(file))
    assert (outcome.code, outcome.err) == (0, "")
    [command] = backend.commands
    assert isinstance(command, SetReference)
    backend.validator.reference = Reference.from_answer("cn17", NOW - 60, command.answer)
    assert backend.validator.reference.facts.kernel == os.uname().release
    shown = run("node", "reference").out
    assert re.search(r"^reference +cn17, seen 60 s ago$", shown, re.MULTILINE)
    assert re.search(rf"^kernel +{os.uname().release}$", shown, re.MULTILINE)

    backend.commands.clear()
    script = run("node", "reference", "--script").out
    said = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=True).stdout
    assert run("node", "reference", "cn18", "--file", "-", typed=said).code == 0
    (tmp_path / "said").write_text(said, encoding="utf-8")
    assert run("node", "reference", "--file", str(tmp_path / "said")).code == 0
    assert run("node", "reference", "--clear").code == 0
    me = command.by
    assert backend.commands == [SetReference("cn18", said, me), SetReference("", said, me), ClearReference(me)]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("gpu1",), 1, "gpu1 is a slot of pool gpu: name a node of the site's own."),
        (("cn17",), 1, "Slurm refused 'srun --nodelist=cn17 --partition=main "),
        (("cn17",), 1, "nodes are busy. Without Slurm: burstctl node reference --script | ssh cn17 sh | burstctl node"),
        (("--file", "/none/here"), 2, "/none/here cannot be read: No such file or directory."),
        (("--script", "--clear"), 2, "choose one: a NODE"),
        (("--partition", "main"), 2, "choose one: a NODE"),
    ],
)
def test_what_can_be_no_reference(
    run: Run, tmp_path: Path, backend: FakeBackend, words: tuple[str, ...], code: int, says: str
) -> None:
    file = slurm_that_says(tmp_path, "", "", "")
    (tmp_path / "cn17").write_text("NodeName=cn17 Arch=x86_64 Partitions=main,long \n", encoding="utf-8")
    (tmp_path / "srun").write_text("#!/bin/sh\necho 'srun: error: Requested nodes are busy' >&2; exit 1\n", "utf-8")
    (tmp_path / "srun").chmod(0o755)
    outcome = run("node", "reference", *words, "--config", str(file))
    assert (outcome.code, outcome.out) == (code, "")
    assert says in " ".join(outcome.err.split())
    assert backend.commands == []


@pytest.fixture
def trees() -> Iterator[Path]:
    """A folder where a tree may lie: nodes have a /tmp of their own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="burst-") as folder:
        yield Path(folder)


def test_what_mounts_need_on_the_head_is_looked_at(run: Run, tmp_path: Path, trees: Path) -> None:
    partition = "PartitionName=burst Nodes=gpu[1-2] State=UP"
    file = slurm_that_says(tmp_path, "SLURM_VERSION = 22.05.8", "", partition)
    tree, program, server = trees / "tree", tmp_path / "burstd-prolog", tmp_path / "sftp-server"
    slurm = f'programs = "{tmp_path}"\n'
    mounts = f'[mounts]\nsftp_server = "{server}"\n[mounts.trees]\nt = {{ path = "{tree}" }}\n'
    mounts += 'h = { path = "/h/{user}" }\n'
    file.write_text(with_secrets(file.read_text(encoding="utf-8") + slurm + mounts, tmp_path), encoding="utf-8")

    def subjects() -> dict[str, str]:
        outcome = run("check", "--json", "--config", str(file))
        found = json.loads(outcome.out)["findings"]
        ours = (str(program), "sftp-server", "mounts.trees.t", "PrologSlurmctld", "partition burst")
        return {f["subject"]: f["found"] for f in found if f["subject"] in ours}

    assert subjects() == {
        "PrologSlurmctld": "not set", str(program): "no file", "sftp-server": "no such program",
        "mounts.trees.t": "no such directory", "partition burst": "not set",
    }  # fmt: skip
    said = run("config", "check", str(file))
    assert said.code == 0, said.out
    assert f"warning: mounts: mounts.trees.t: wanted a directory {tree} on the head, found no such dir" in said.out
    assert "warning" not in run("config", "check", "--no-files", str(file)).out
    tree.mkdir()
    for path in (program, server):
        path.touch(mode=0o644)
    assert {subjects().get(str(program)), subjects().get("sftp-server")} == {"not executable", "no such program"}
    for path in (program, server):
        path.chmod(0o755)
    config = f"SLURM_VERSION = 22.05.8\nPrologSlurmctld = {program}"
    slurm_that_says(tmp_path, config, "", f"{partition} ExclusiveUser=YES")
    file.write_text(file.read_text(encoding="utf-8") + slurm + mounts, encoding="utf-8")
    assert subjects() == {}


@needs_root
def test_the_socket_of_the_mount_worker_is_tried(run: Run, tmp_path: Path) -> None:
    """Of a burstd that is not root."""
    file, there = tmp_path / "burstd.toml", tmp_path / "worker.sock"
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 4242, -1)
    more = f'[daemon]\nstate_dir = "{tmp_path}/state"\n[mounts]\nworker_socket = "{there}"\n'
    more += '[mounts.trees]\nt = { path = "/srv" }\n'
    file = fitting_slurm(run, tmp_path)[0]
    file.write_text(file.read_text(encoding="utf-8") + more, encoding="utf-8")
    os.chown(tmp_path / "secret", 4242, -1)
    let_others_in(tmp_path)

    def said() -> tuple[str, str]:
        findings = json.loads(run("check", "--json", "--config", str(file)).out)["findings"]
        [found] = [f for f in findings if f["subject"] == str(there)] or [{"found": "", "remedy": ""}]
        return found["found"], found["remedy"]

    unit = "burstd-mount-worker.socket"
    assert said() == ("No such file or directory", f"systemctl enable --now {unit}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(there))
        listener.listen()
        assert said() == ("Permission denied", f"set SocketUser=uid 4242 in {unit} and restart it")
        os.chown(there, 4242, -1)
        assert said() == ("", "")


@needs_root
def test_burstds_own_user_and_slurms_try_what_they_need(run: Run, tmp_path: Path) -> None:
    """Where root, who runs the check, can do it all."""
    store, state, programs, secret = (tmp_path / name for name in ("store", "state", "bin", "secret"))
    file, _, config, nodes, partition = fitting_slurm(run, tmp_path)
    for folder in (store, state, programs):
        folder.mkdir(mode=0o755)
    os.chown(state, NOBODY, NOBODY)
    more = f'[daemon]\nstate_dir = "{state}"\nspool_dir = "{programs}"\n[staging]\nstore = "s"\n'
    more += f'[staging.stores.s]\nkind = "shared"\npath = "{store}"\n'
    text = file.read_text(encoding="utf-8") + more
    config = [line for line in config if not re.match("(Resume|Suspend|ResumeFail)Program ", line)]
    for name in ("burstd-resume", "burstd-suspend", "burstd-resumefail"):
        config.append(f"{name.removeprefix('burstd-').title().replace('fail', 'Fail')}Program = {programs}/{name}")
    (programs / "burstd-suspend").write_text("#!/bin/sh\n", encoding="utf-8")
    (programs / "burstd-resumefail").write_text("#!/opt/none/python3 -I\n", encoding="utf-8")
    (programs / "burstd-resumefail").chmod(0o755)
    slurm_that_says(tmp_path, "\n".join([*config, "SlurmUser = nobody(65534)"]), "\n".join(nodes), partition)
    file.write_text(text, encoding="utf-8")
    let_others_in(tmp_path)

    def said() -> list[str]:
        findings = json.loads(run("check", "--json", "--config", str(file)).out)["findings"]
        tried = [f for f in findings if "user nobody" in f["wanted"] or f["subject"] == "store s"]
        return [
            f"{f['subject']}: wanted {f['wanted']}, found {f['found']}: {f['breaks']}: {f['remedy']}" for f in tried
        ]

    can, asks = "what user nobody can use", "Slurm's requests do not reach burstd"
    off = "burstd does not start, and takes no reload"
    closed = f"the file {secret} cannot be read by user nobody: {off}: let user nobody read it and pass its folders"
    run_by, let = "a program that user nobody can run", "where user nobody can run it"
    assert said() == [
        (
            f"ResumeProgram: wanted {run_by}, found no file {programs}/burstd-resume: {asks}: "
            f"let ResumeProgram name burstd-resume {let}"
        ),
        (
            f"SuspendProgram: wanted {run_by}, found {programs}/burstd-suspend is not executable: {asks}: "
            f"let SuspendProgram name burstd-suspend {let}"
        ),
        (
            f"ResumeFailProgram: wanted {run_by}, found {programs}/burstd-resumefail needs /opt/none/python3, which "
            f"cannot be run: {asks}: let ResumeFailProgram name burstd-resumefail {let}"
        ),
        (
            f"daemon.spool_dir: wanted a folder that user nobody can write to, found {programs} is closed to that "
            "user: what slurmctld asks for while burstd is away is lost: "
            f"chown nobody {programs}, or let its group write"
        ),
        f"node.munge_key: wanted {can}, found {closed}",
        f"providers.sandbox.token_file: wanted {can}, found {closed}",
        (
            f"store s: wanted an answer, found the folder {store}/ada cannot be listed: Permission denied: no input "
            "reaches the cloud and no output comes home: check [staging.stores.s]"
        ),
    ]
    outcome = run("config", "check", str(file))
    hint = "let user nobody read it and pass its folders"
    assert (outcome.code, outcome.out.splitlines()) == (1, [
        f"{file} has 2 faults:",
        f"  node.munge_key: the file {secret} cannot be read by user nobody: {hint}",
        f"  providers.sandbox.token_file: the file {secret} cannot be read by user nobody: {hint}",
    ])  # fmt: skip
    for path in (secret, store, programs):
        os.chown(path, NOBODY, NOBODY)
    config = [re.sub("burstd-(suspend|resumefail)", "burstd-resume", line) for line in config]
    (programs / "burstd-resume").write_text("#!/bin/sh\n", encoding="utf-8")
    (programs / "burstd-resume").chmod(0o755)
    slurm_that_says(tmp_path, "\n".join([*config, "SlurmUser = nobody(65534)"]), "\n".join(nodes), partition)
    file.write_text(text, encoding="utf-8")
    assert said() == []
    file.chmod(0o600)
    assert said() == [
        (
            f"{file}: wanted {can}, found cannot be read (Permission denied): {off}: "
            "let user nobody read it and pass its folders"
        )
    ]


def test_pools_without_home_directories_are_named(run: Run, tmp_path: Path) -> None:
    file = slurm_that_says(tmp_path, "SLURM_VERSION = 22.05.8", "", "PartitionName=burst Nodes=gpu[1-2] State=UP")
    settings = file.read_text(encoding="utf-8")

    def found(more: str) -> list[dict[str, object]]:
        file.write_text(f"{settings}{more}\n", encoding="utf-8")
        findings = json.loads(run("check", "--json", "--config", str(file)).out)["findings"]
        return [f for f in findings if f["subject"] == "home directories"]

    assert found("") == [
        {
            "subject": "home directories",
            "wanted": "shown on nodes of gpu, copied there, or known to be in the images",
            "found": "not named in [mounts], [staging.workdir] or sentinels",
            "breaks": "where the images lack them, an ordinary sbatch from a home directory fails there with exit code "
            "0:53",
            "remedy": 'add home = { path = "{home}" } to [mounts.trees], or the partitions to [staging.workdir], or, '
            'where the images mount them, sentinels = ["/home"] to [node]',
            "advice": True,
        }
    ]
    assert found('[node]\nsentinels = ["/home"]') == []
    assert found('[mounts.trees]\nhome = { path = "{home}" }') == []


def test_a_munge_key_that_munged_does_not_work_with_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, old, munge = tmp_path / "munge.key", tmp_path / "old.key", tmp_path / "munge"
    munge.write_text(f"#!/bin/sh\necho '{CREDENTIAL}'\n", encoding="utf-8")
    munge.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("burstd.cli.checks.munge.UNIT_COPY", old)
    file = slurm_that_says(tmp_path, "SLURM_VERSION = 22.05.8\nAuthType = auth/munge", "", "")
    file.write_text(f'{file.read_text(encoding="utf-8")}[node]\nmunge_key = "{key}"\n', encoding="utf-8")
    lost = "burstd brings this key to each machine over ssh, and slurmctld refuses machines with it: none registers"

    def said() -> list[str]:
        lines = run("check", "--config", str(file), columns=300).out.splitlines()
        at = [n for n, line in enumerate(lines) if line.startswith("munge")]
        return lines[at[0] : at[0] + 3] if at else []

    key.write_bytes(KEY)
    assert said() == []
    old.write_bytes(b"o" * 64)
    assert said() == [
        f"munge key {old}: wanted the key of the munged that runs here, found another key",
        f"  As it is: {lost}.",
        "  Remedy: systemctl restart burstd, which reads the key when it starts.",
    ]
    key.write_bytes(b"o" * 64)
    assert said() == [
        f"munge key {key}: wanted the key of the munged that runs here, found another key",
        f"  As it is: {lost}.",
        (
            f"  Remedy: if {key} is right, systemctl restart munge slurmctld burstd; else name the cluster's key in "
            "munge_key of [node]."
        ),
    ]
    munge.write_text("#!/bin/sh\necho 'munge: Error: Failed to connect' >&2; exit 1\n", encoding="utf-8")
    assert said() == [
        "munge: wanted a credential, found munge does not work on the head: munge: Error: Failed to connect",
        f"  As it is: {lost}.",
        "  Remedy: look at munge.service.",
    ]
