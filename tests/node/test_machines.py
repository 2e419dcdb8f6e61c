"""Real machines: cloud-init run on our template, sshd, munge and slurmd of Debian, a real slurmctld."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from unittest.mock import patch

import pytest

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import GpuTest, Offer
from burstd.domain.errors import CloudUnavailable, NodeNotReady, NodeRefused
from burstd.domain.framework import Framework
from burstd.node.errors import (
    AuthRefused,
    ClockNotSet,
    CommandFailed,
    HostKeyMismatch,
    HostKeyUnknown,
    HostKeyUnobtainable,
    NotAuthorizedYet,
    NotReachable,
    SlurmctldUnreachable,
    SlurmdNotStarted,
    ValidationFailed,
)
from burstd.node.facts import NO_LIMIT, FactsRequest, UserIds, facts_script, parse_facts
from burstd.node.reference import Reference
from burstd.node.ssh.host_keys import HostKeyPolicy, parse_console_host_keys
from burstd.node.ssh.key_pair import ensure_ssh_key
from burstd.node.ssh.process import SshProcess
from burstd.node.validator import SlurmNodeValidator, ValidatorConfig
from providers.sandbox.boxes.boot.description import BoxFile
from providers.sandbox.boxes.box import Box
from tests.lab.releases import releases
from tests.lab.slurm_files import VERSIONS
from tests.node.conftest import Machines

pytestmark = [pytest.mark.boxes, pytest.mark.slurm, pytest.mark.usefixtures("head_network")]


class ValidationBench:
    """A prover, and claims for it to prove."""

    def __init__(self, machines: Machines, directory: Path, ssh_process: SshProcess) -> None:
        cluster = machines.cluster
        self.machines, self.ssh_process = machines, ssh_process
        self.pool = cluster.pools[0]
        self.cluster = cluster
        # Boxes have the machine's CPUs and memory, not their type's.
        self.config = ValidatorConfig(
            users=("root",),  # whom this machine has, which stands for the head, and the boxes
            ssh_key=machines.key,
            host_keys_dir=directory / "pins",
            munge_key=cluster.state / "munge.key",
            conf_server="head",
            connect_timeout_s=3.0,
            skip_checks=frozenset({"cpus", "memory"}),
        )
        self.version: tuple[int, ...] = VERSIONS[cluster.release][:2]
        self.late_s = 0.0
        self.reference: Reference | None = None
        self.reached: list[str] = []

    def validator(self, **changes: object) -> SlurmNodeValidator:
        config = replace(self.config, **changes)  # type: ignore[arg-type]
        validator = SlurmNodeValidator(
            config, slurm_version=lambda: self.version, wall=lambda: time.time() + self.late_s,
            credential=self.machines.credential, ssh_process=self.ssh_process,
        )  # fmt: skip
        validator.reference = self.reference
        return validator

    def claim(self, slot: str, address: str, users: tuple[str, ...] = ()) -> Claim:
        offer = Offer("sandbox", "here", "a", "gpu4", spot=False, shape=self.pool.shape, price=Decimal(1))
        return Claim(
            f"claim-{slot}", "lab", "gpu", slot, offer, Cause.DEMAND, ClaimState.BOOTING, 0.0, 0.0,
            users=users, instance_id=f"i-{slot}", address=address,
        )  # fmt: skip

    def validate(self, claim: Claim, console: Callable[[], str] | None, **changes: object) -> str:
        return self.validator(**changes).validate(claim, self.pool, console, lambda: self.reached.append(claim.id))


@pytest.fixture
def bench(machines: Machines, tmp_path: Path) -> Iterator[ValidationBench]:
    with closing(SshProcess()) as ssh_process:
        yield ValidationBench(machines, tmp_path, ssh_process)


def pids(box: Box, program: str) -> list[str]:
    return box.run(["pgrep", "-x", program], check=False).stdout.split()


def has_key(box: Box) -> bool:
    return box.path("/etc/munge/munge.key").exists()


@pytest.mark.parametrize("cluster", releases("bookworm", "trixie", "forky"), indirect=True)
def test_a_machine_becomes_a_node_and_every_step_may_be_repeated(
    bench: ValidationBench, boot: Callable[..., Box]
) -> None:
    cluster, claim = bench.cluster, bench.claim("cl1", "10.77.1.1")
    box = boot("cl1", claim.address)
    console = bench.machines.console_of(box)
    said = bench.validate(claim, console)
    assert "4 GPUs" in said
    assert bench.reached == [claim.id]
    key = box.path("/etc/munge/munge.key")
    assert key.read_bytes() == (cluster.state / "munge.key").read_bytes()
    assert box.run(["stat", "-c", "%U:%G %a", "/etc/munge/munge.key"]).stdout == "munge:munge 400\n"
    assert '"errors": []' in box.run(["cat", "/run/cloud-init/result.json"]).stdout
    warnings = [line for line in box.run(["cat", "/var/log/cloud-init.log"]).stdout.splitlines() if "WARNING" in line]
    if cluster.release == "bookworm":  # cloud-init 22.4 does as it is told, but its schema wants a user to be made
        warnings = [line for line in warnings if "Invalid cloud-config provided" not in line]
    assert warnings == []
    munged = pids(box, "munged")

    # The next try has forgotten everything but the pin: no console is asked any more.
    bench.validate(claim, None)
    bench.validator().probe(claim)
    with pytest.raises(NotReachable):
        bench.validator().probe(replace(claim, address="10.77.1.250"))
    assert pids(box, "munged") == munged

    cluster.sh("scontrol update nodename=cl1 state=power_up && scontrol update nodename=cl1 nodeaddr=10.77.1.1")
    bench.validator().start_slurmd(claim, bench.pool)
    # slurmd's first process goes when its daemon is up.
    box.wait(lambda b: len(pids(b, "slurmd")) == 1, 10, "running one slurmd")
    slurmd = pids(box, "slurmd")
    bench.validator().start_slurmd(claim, bench.pool)
    assert pids(box, "slurmd") == slurmd
    cluster.wait(lambda: cluster.sh("sinfo -hn cl1 -o %t").split() == ["idle"], 30, "cl1 idle")
    job = [
        "srun",
        "-p",
        "burst",
        "-w",
        "cl1",
        "--gres=gpu:v100:2",
        "sh",
        "-c",
        "hostname; id -un; echo $CUDA_VISIBLE_DEVICES",
    ]
    assert cluster.head.run(job, user="nobody", timeout=30).stdout.split() == ["cl1", "nobody", "0,1"]


def test_differences_are_named_and_such_a_machine_is_given_nothing(
    bench: ValidationBench, boot: Callable[..., Box]
) -> None:
    claim = bench.claim("cl2", "10.77.1.2", users=("ada",))
    box = boot("cl2", claim.address, gpus=3)
    bench.version = (21, 8, 1)
    with pytest.raises(ValidationFailed) as caught:
        bench.validate(claim, bench.machines.console_of(box), skip_checks=frozenset(), users=("slurm", "root"))
    said = str(caught.value)
    assert caught.value.cause == "gpus"
    assert not caught.value.again
    assert "gpus: 3 GPUs in /dev where 4 GPUs is expected." in said
    assert "slurmd 21.08.1 is expected" in said
    assert "sandbox/here/a/gpu4/on-demand" in said
    assert not has_key(box)
    assert pids(box, "munged") == []


MODULES = """module() { echo /opt/modules: >&2; echo GCC/%s >&2; }"""


def test_a_machine_is_compared_with_the_reference(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    """Looked at as a node of the site: the machine itself. Then it is changed in each point."""
    claim = bench.claim("cl3", "10.77.1.4")
    box = boot("cl3", claim.address)
    console = bench.machines.console_of(box)
    versions, modules, hung = box.path("/opt/sw/versions"), box.path("/etc/profile.d/modules.sh"), "/opt/hung"
    versions.parent.mkdir()
    versions.write_text("2023.06\n")
    modules.write_text(MODULES % "12.3.0")
    asked: dict[str, object] = {"sentinels": ("/opt/sw/versions", "/opt/sw"), "modules": ("GCC",), "users": ("root",)}
    script = bench.validator(**asked).reference_script()
    reference = Reference.from_answer("op1", 0.0, box.run(["sh", "-c", script]).stdout)
    assert reference.summary()["module GCC"] == "GCC/12.3.0"
    bench.reference = reference
    assert "differs" not in bench.validate(claim, console, **asked)

    site_has = replace(
        reference.facts, arch="riscv64", kernel="5.14.0", os="rocky 9.4", glibc="2.99", lang="xx_XX.UTF-8",
        timezone="Europe/Paris", driver="535.104.05", limits=dict.fromkeys(reference.facts.limits, NO_LIMIT),
    )  # fmt: skip
    assert set(site_has.limits) == {"memlock", "nofile", "stack", "nproc"}
    bench.reference = replace(reference, facts=site_has)
    versions.write_text("2023.07\n")
    modules.write_text(MODULES % "13.2.0")
    validator = bench.validator(**{**asked, "may_differ": frozenset({"kernel", "timezone"})})
    found = {one.name: one for one in validator.differences(claim, bench.pool)}
    assert {name for name, one in found.items() if one.allowed} == {"kernel", "timezone"}
    raised = {"memlock", "nofile", "stack", "nproc"} & found.keys()  # what has no limit here cannot be too low
    assert "nofile" in raised
    assert found.keys() - raised == {
        "architecture", "kernel", "os", "glibc", "driver", "locale", "timezone", "modules", "sentinels",
    }  # fmt: skip
    assert (found["modules"].expected, found["modules"].found) == ("GCC/12.3.0", "GCC/13.2.0")
    kernel = reference.facts.kernel
    with pytest.raises(ValidationFailed, match=f"kernel: {kernel} where 5.14.0 is expected") as caught:
        bench.validate(claim, console, **{**asked, "may_differ": frozenset(found) - {"kernel"}})
    assert caught.value.cause == "kernel"
    said = bench.validate(claim, console, **{**asked, "may_differ": frozenset(found)})
    architecture = f"architecture: {reference.facts.arch} where riscv64 is expected."
    assert architecture in said.partition("It differs where it may: ")[2]

    # A file system whose server hangs: its reader is given up, and all else is said.
    box.run(["mkfifo", hung])
    patience = FactsRequest(sentinels=(hung, "/opt/sw"), within_s=1)
    facts = parse_facts(box.run(["sh", "-c", facts_script(patience)]).stdout, asked=0, answered=0)
    assert facts is not None
    assert facts.sentinels == {hung: "", "/opt/sw": "directory"}


TREE = """module() { printf '%s\\n' /opt/modules: GCC/ GCC/12.3.0 "R/4.3(default)" >&2; }\n"""
ATTR = """#!/bin/sh
[ "$1 $2 $3" = "-qg revision /cvmfs/soft" ] && cat /root/revision
"""


def test_six_differences_stand_in_one_message(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    """The reference is the machine itself, with a newer kernel, driver and C library."""
    claim = bench.claim("cl3", "10.77.1.4")
    box = boot("cl3", claim.address)
    console = bench.machines.console_of(box)
    for path, text in {
        "/usr/local/bin/attr": ATTR, "/etc/profile.d/modules.sh": TREE, "/root/revision": "812\n",
        "/cvmfs/soft/versions": "1\n", "/usr/local/bin/podman": "#!/bin/sh\necho podman version 4.3.1\n",
    }.items():  # fmt: skip
        box.path(path).parent.mkdir(parents=True, exist_ok=True)
        box.path(path).write_text(text)
        box.path(path).chmod(0o755)
    site: dict[str, object] = {
        "sentinels": ("/cvmfs/soft",), "modules": ("*",), "users": ("root",), "may_differ": frozenset(),
    }  # fmt: skip
    answer = box.run(["sh", "-c", bench.validator(**site).reference_script()]).stdout
    reference = Reference.from_answer("op1", 0.0, answer)
    assert reference.facts.runtimes == {"podman": "4.3.1"}
    assert reference.facts.revisions == {"/cvmfs/soft": 812}
    assert reference.facts.tree_modules == ("GCC/12.3.0", "R/4.3")
    bench.reference = reference
    assert "differs" not in bench.validate(claim, console, **site)

    box.path("/root/revision").write_text("805\n")
    box.path("/etc/profile.d/modules.sh").write_text(TREE.replace("R/4.3", "R/4.2"))
    newer = replace(reference.facts, kernel="9.1.0-site", glibc="2.99", driver="999.1")
    bench.reference = replace(reference, facts=newer)
    here = UserIds(0, 0, (0, 5000))
    with (
        patch("burstd.node.validator.head_user_ids", return_value={"root": here}),
        pytest.raises(ValidationFailed) as caught,
    ):
        bench.validate(claim, console, **site)
    said = str(caught.value)
    assert re.findall(r"\b(\w+): [^:]* where .*? is expected", said) == [
        "groups", "modules", "kernel", "glibc", "driver", "cvmfs",
    ]  # fmt: skip
    assert "groups: no groups where user root in groups 5000 is expected" in said
    assert "modules: no R/4.3; besides R/4.2 where the tree of 2 modules with checksum" in said
    assert "cvmfs: revision 805 where /cvmfs/soft at revision 812 or newer is expected" in said
    assert not caught.value.again

    with patch("burstd.node.validator.head_user_ids", return_value={"root": here}):
        allowed = frozenset({"groups", "modules", "kernel", "glibc", "driver", "cvmfs"})
        noted = bench.validate(claim, console, **site | {"may_differ": allowed})
    refused = re.sub(r", or take \w+ into may_differ, which has it by default", "", said.partition("differs: ")[2])
    # The longer message is cut at its end.
    assert refused.removesuffix("...").rstrip() in noted.partition("It differs where it may: ")[2]


def test_a_clock_that_is_off_may_still_be_set(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    claim = bench.claim("cl2", "10.77.1.2")
    box = boot("cl2", claim.address)
    bench.late_s = 3600.0
    with pytest.raises(ClockNotSet, match="clock: a clock 3600 s behind where the head's time") as caught:
        bench.validate(claim, bench.machines.console_of(box))
    assert caught.value.again
    assert not has_key(box)


def test_the_sites_own_checks(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    claim = bench.claim("cl2", "10.77.1.2")
    box = boot("cl2", claim.address)
    console = bench.machines.console_of(box)
    with pytest.raises(ValidationFailed, match=r"'ls: cannot access '/scratch'.*' \(exit status 2\)") as caught:
        bench.validate(claim, console, check_commands={"scratch": "ls -d /scratch"})
    assert caught.value.cause == "scratch"
    box.run(["mkdir", "/scratch"])
    bench.validate(claim, console, check_commands={"scratch": "ls -d /scratch"})


CHECK = """#!/usr/bin/env python3
import subprocess, sys
subprocess.Popen(["sleep", "600"])  # it keeps our output open
print("FOLDER %s | number=%d" % (sys.argv, {number}))
sys.exit({number})
"""


def test_the_sites_check_programs(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    claim = bench.claim("cl2", "10.77.1.2")
    box = boot("cl2", claim.address)
    console = bench.machines.console_of(box)
    programs = {name: CHECK.format(number=number).encode() for name, number in (("well", 0), ("warns", 1))}
    said = bench.validate(claim, console, check_programs=programs)
    assert "well:" not in said
    assert re.search(r"warns: 'FOLDER \['/run/burstd-check\.\w+/check'\]' \(exit status 1\)", said)
    endless = {"endless": b"#!/bin/sh\nyes\n"}
    with pytest.raises(ValidationFailed, match=r"endless: 'y' \(exit status 153\)"):
        bench.validate(claim, console, check_programs=endless)
    assert box.run(["sh", "-c", "ls -d /run/burstd-check* || true"]).stdout == ""


NVIDIA_SMI = """#!/bin/sh
for n in 0 1 2 3; do
    case $1 in
    -L) echo "GPU $n: Tesla V100 (UUID: GPU-$n)" ;;
    *)
        printf '%s\\n' "<gpu id=\\"0000:0$n:00.0\\">" "<volatile>" \\
            "<dram_uncorrectable>$(cat "/root/errors-$n" || echo 0)</dram_uncorrectable>" "</volatile>" "</gpu>"
        ;;
    esac
done
"""


def test_gpus_are_tested_before_anything_is_handed_over(
    bench: ValidationBench, boot: Callable[..., Box], cuda_driver: Path
) -> None:
    claim = bench.claim("cl2", "10.77.1.2")
    box = boot("cl2", claim.address)
    console = bench.machines.console_of(box)
    bench.pool = replace(bench.pool, gpu_test=GpuTest.SHORT, gpu_test_limit_s=60.0)
    with pytest.raises(ValidationFailed, match="gpu_health: 0 where the state of 4 GPUs is expected"):
        bench.validate(claim, console)
    smi = box.path("/usr/local/bin/nvidia-smi")
    smi.write_text(NVIDIA_SMI)
    smi.chmod(0o755)
    with pytest.raises(ValidationFailed, match="gpu_test: GPU-0 the CUDA driver is missing") as caught:
        bench.validate(claim, console)
    assert caught.value.cause == "gpu_tools"
    assert not has_key(box)
    box.path("/usr/lib/libcuda.so.1").write_bytes(cuda_driver.read_bytes())
    box.path("/root/errors-2").write_text("7")
    with pytest.raises(ValidationFailed, match="has 7 uncorrectable memory errors"):
        bench.validate(claim, console)
    box.path("/root/errors-2").write_text("0")
    bench.validate(claim, console)
    assert has_key(box)


MODULE = """module() {
    [ "$1 $2" = "load torch/2.5" ] || { echo "Unable to locate a modulefile for '$2'" >&2; return 1; }
    export PYTHONPATH=/opt/torch
}
"""
TORCH = """import os, subprocess
assert os.getuid() != 0 and os.environ["HOME"] == os.getcwd() and os.access(".", os.W_OK)
subprocess.Popen(["sleep", "600"])  # it keeps our output open
def ones(count, device):
    if not os.path.exists("/dev/nvidia0"):
        raise RuntimeError("No CUDA GPUs are available")
    return type("Tensor", (), {"sum": lambda self: self, "item": lambda self: count})()
"""
APPTAINER = """#!/bin/sh
[ "$1 $2 $3 $4" = "exec --nv /opt/jax.sif sh" ] && [ "$(id -un)" = nobody ] && shift 3 && exec "$@"
echo "FATAL: $*"
exit 255
"""


def test_frameworks_are_tested_as_a_user_before_anything_is_handed_over(
    bench: ValidationBench, boot: Callable[..., Box]
) -> None:
    claim = bench.claim("cl2", "10.77.1.2")
    box = boot("cl2", claim.address)
    console = bench.machines.console_of(box)
    computes = "python3 -c 'import torch; assert torch.ones(8, device=\"cuda\").sum().item() == 8'"
    torch = Framework("pytorch-2.5", computes, ("torch/2.5",), limit_s=20.0)
    jax = Framework("jax-1", "grep -q jax /opt/jax.sif", image="/opt/jax.sif", limit_s=20.0)
    plain = bench.pool

    def refused(*frameworks: Framework) -> str:
        bench.pool = replace(plain, frameworks=frameworks)
        with pytest.raises(ValidationFailed) as caught:
            bench.validate(claim, console)
        assert caught.value.cause == "frameworks"
        assert not has_key(box)
        return str(caught.value)

    def write(path: str, text: str, mode: int = 0o755) -> None:
        box.path(path).parent.mkdir(exist_ok=True)
        box.path(path).write_text(text)
        box.path(path).chmod(mode)

    both = refused(torch, jax)
    assert "frameworks: 'there is no command module in a login shell' (exit status 3) where success of" in both
    assert "in jax-1 (image /opt/jax.sif)" in both
    assert "'users cannot read an image /opt/jax.sif'" in both
    write("/etc/profile.d/modules.sh", MODULE)
    write("/opt/jax.sif", "jax", 0o600)
    assert "users cannot read an image" in refused(jax)
    box.path("/opt/jax.sif").chmod(0o644)
    assert "there is no apptainer" in refused(jax)
    write("/usr/local/bin/apptainer", APPTAINER)
    assert "module load torch/2.6 fails" in refused(replace(torch, modules=("torch/2.6",)))
    assert "'ModuleNotFoundError: No module named 'torch'' (exit status 1)" in refused(torch)
    write("/opt/torch/torch.py", TORCH.replace("nvidia0", "nvidia9"))
    assert "'RuntimeError: No CUDA GPUs are available'" in refused(torch)
    assert "'no answer within 1 s' (exit status 124)" in refused(replace(torch, check="exec sleep 600", limit_s=1.0))
    assert "(exit status 153)" in refused(replace(torch, check="yes"))

    write("/opt/torch/torch.py", TORCH)
    bench.pool = replace(plain, frameworks=(torch, jax))
    assert "4 GPUs, pytorch-2.5, jax-1, Slurm" in bench.validate(claim, console)
    assert has_key(box)
    assert box.run(["sh", "-c", "ls -d /tmp/burstd-* || true"]).stdout == ""

    # What is declared, or changed, later was never tested there.
    assert bench.validator().differences(claim, bench.pool) == []
    bench.pool = replace(plain, frameworks=(replace(torch, check="true"), jax))
    (found,) = bench.validator().differences(claim, bench.pool)
    assert (found.name, found.expected) == ("frameworks", "pytorch-2.5 (module load torch/2.5) tested")


def test_another_machine_at_the_address_is_told_nothing(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    claim = bench.claim("cl2", "10.77.1.2")
    ours = boot("ours", "10.77.1.3")
    other = boot("other", claim.address)
    bench.machines.console_of(other)
    with pytest.raises(HostKeyMismatch, match="another machine answers at this address") as caught:
        bench.validate(claim, bench.machines.console_of(ours))
    assert not caught.value.again
    assert caught.value.cause == "hostkey"
    assert "Accepted" not in other.run(["cat", "/var/log/sshd.log"]).stdout
    assert not has_key(other)
    assert bench.reached == []


def test_first_use_is_pinned_for_the_claim_and_for_no_longer(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    claim = bench.claim("cl2", "10.77.1.2")
    trust = {"sandbox": HostKeyPolicy.FIRST_USE}
    first = boot("first", claim.address)
    bench.machines.console_of(first)
    bench.validate(claim, None, host_key_policies=trust)
    first.stop()
    second = boot("second", claim.address)
    bench.machines.console_of(second)
    for _ in range(2):  # what the wrong one showed is not learned
        with pytest.raises(HostKeyMismatch, match="of its first connection"):
            bench.validate(claim, None, host_key_policies=trust)
    assert not has_key(second)
    bench.validator().retain_only([])
    bench.validate(claim, None, host_key_policies=trust)
    assert has_key(second)


def test_a_machine_that_is_not_ready_is_tried_again(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    asked: list[int] = []

    def console() -> str:
        asked.append(1)
        return "[    0.000000] Linux version 6.1\n"

    claim = bench.claim("cl2", "10.77.1.2")
    with pytest.raises(NotReachable, match="told no address"):
        bench.validate(replace(claim, address=""), console)
    with pytest.raises(NotReachable, match="does not answer on port 22") as caught:
        bench.validate(claim, console, connect_timeout_s=0.3)  # nobody is there
    assert caught.value.again
    box = boot("cl2", claim.address, ssh=False)
    box.wait_booted()
    with pytest.raises(NotReachable, match="does not answer on port 22"):
        bench.validate(claim, console)  # the machine is there, sshd is not
    assert asked == []  # no call to the cloud so far
    box.run(["sh", "-c", "mkdir -p /run/sshd; /usr/sbin/sshd"])
    with pytest.raises(HostKeyUnknown, match="shows no host keys so far"):
        bench.validate(claim, console)

    def broken() -> str:
        raise CloudUnavailable("503")

    with pytest.raises(HostKeyUnknown, match="cannot be read now: 503"):
        bench.validate(claim, broken)
    with pytest.raises(HostKeyUnobtainable, match="first_use"):
        bench.validate(claim, None)
    bench.validate(claim, bench.machines.console_of(box))


def test_a_port_that_speaks_no_ssh(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    claim = bench.claim("cl2", "10.77.1.2")
    box = boot("cl2", claim.address, ssh=False)
    server = box.popen(["python3", "-m", "http.server", "22"], stderr=-3)
    box.wait_ssh()
    with pytest.raises(NotReachable, match="but not as sshd does"):
        bench.validate(claim, None, host_key_policies={"sandbox": HostKeyPolicy.FIRST_USE}, connect_timeout_s=1.0)
    server.kill()
    server.wait()


def test_a_machine_that_refuses_our_key(bench: ValidationBench, boot: Callable[..., Box], tmp_path: Path) -> None:
    claim = bench.claim("cl2", "10.77.1.2")
    box = boot("cl2", claim.address, public=ensure_ssh_key(tmp_path / "other"))
    console = bench.machines.console_of(box)
    # The console says that cloud-init is done; without it the key may still come.
    with pytest.raises(NotAuthorizedYet, match="may not have installed it so far"):
        bench.validate(claim, None, host_key_policies={"sandbox": HostKeyPolicy.FIRST_USE})
    with pytest.raises(AuthRefused, match="refuses burstd's key for root") as caught:
        bench.validate(claim, console)
    assert caught.value.cause == "auth"


def test_an_ordinary_user_with_sudo_will_do(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    files = (BoxFile("/etc/sudoers.d/cloud", "nobody ALL=(ALL) NOPASSWD:ALL\n", 0o440),)
    claim = bench.claim("cl2", "10.77.1.2")
    box = boot("cl2", claim.address, files=files)
    console = bench.machines.console_of(box)
    box.run(["usermod", "-s", "/bin/sh", "-d", "/home/nobody", "nobody"])
    keys = ["/root/.ssh/authorized_keys", "/home/nobody/.ssh/authorized_keys"]
    box.run(["install", "-D", "-o", "nobody", "-m", "600", *keys])
    bench.validate(claim, console, ssh_user="nobody")
    assert box.run(["stat", "-c", "%U:%G %a", "/etc/munge/munge.key"]).stdout == "munge:munge 400\n"
    assert "Accepted publickey for root" not in box.run(["cat", "/var/log/sshd.log"]).stdout


def test_a_key_of_the_image_and_a_dead_munged_are_replaced(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    claim = bench.claim("cl2", "10.77.1.2")
    box = boot("cl2", claim.address, files=(BoxFile("/etc/munge/munge.key", b"x" * 64, 0o400, "munge:munge"),))
    console = bench.machines.console_of(box)
    box.run(["sh", "-c", "install -d -o munge -g munge /run/munge; runuser -u munge -- munged"])
    before = pids(box, "munged")
    bench.validate(claim, console)
    assert set(pids(box, "munged")).isdisjoint(before)
    box.run(["pkill", "-9", "-x", "munged"])
    bench.validate(claim, console)
    # One that has another key than the file has now, as when we were killed between the two steps.
    other = "head -c 64 /dev/zero > /etc/munge/munge.key; runuser -u munge -- munged"
    key = "/etc/munge/munge.key"
    box.run(["sh", "-c", f"munged --stop; cp -p {key} /tmp/k; {other}; cat /tmp/k > {key}; rm /tmp/k"])
    bench.validate(claim, console)
    assert box.run(["sh", "-c", "ls -A /etc/munge"]).stdout == "munge.key\n"


def test_a_munge_that_cannot_work_is_refused(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    claim = bench.claim("cl2", "10.77.1.2")
    box = boot("cl2", claim.address)
    console = bench.machines.console_of(box)
    box.run(["sh", "-c", "rm -rf /var/log/munge; ln -s /nonexistent/x /var/log/munge"])
    with pytest.raises(CommandFailed, match=r"munge does not work on the machine: .*munge") as caught:
        bench.validate(claim, console)
    assert caught.value.cause == "munge"
    assert isinstance(caught.value, NodeRefused)


@pytest.mark.parametrize("after_ms", [100, 200, 300, 400, 500])
def test_killed_while_it_proves_and_starts_then_repeated(
    bench: ValidationBench, boot: Callable[..., Box], after_ms: int
) -> None:
    claim = bench.claim("cl3", "10.77.1.3")
    box = boot("cl3", claim.address)
    console = bench.machines.console_of(box)
    bench.cluster.sh("scontrol update nodename=cl3 state=power_up", check=False)
    for _ in range(2):
        child = os.fork()
        if child == 0:
            bench.validate(claim, console)
            bench.validator().start_slurmd(claim, bench.pool)
            os._exit(0)
        # No condition to wait for: the point is to strike wherever it happens to be.
        time.sleep(after_ms / 1000)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    bench.validate(claim, console)
    bench.validator().start_slurmd(claim, bench.pool)
    assert len(pids(box, "munged")) == 1
    box.wait(lambda b: len(pids(b, "slurmd")) == 1, 10, "running one slurmd")
    assert box.run(["sh", "-c", "ls -A /etc/munge"]).stdout == "munge.key\n"


def test_slurmd_under_another_name_is_replaced(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    claim = bench.claim("cl4", "10.77.1.4")
    box = boot("cl4", claim.address)
    bench.validate(claim, bench.machines.console_of(box))
    # It has a slurm.conf of its own, and no munge: it never registers.
    for name in ("slurm.conf", "gres.conf"):
        box.path(f"/etc/slurm/{name}").write_text(bench.cluster.head.path(f"/etc/slurm/{name}").read_text())
    box.run(["sh", "-c", "pkill -x munged; slurmd -N cl5 -b; rm /etc/slurm/slurm.conf /etc/slurm/gres.conf"])
    bench.cluster.wait(lambda: "munge does not work" in bench.validator().registration_fault(claim), 30, "why")
    bench.validate(claim, bench.machines.console_of(box))
    bench.validator().start_slurmd(claim, bench.pool)
    box.wait(lambda b: len(pids(b, "slurmd")) == 1, 10, "running one slurmd")
    (pid,) = pids(box, "slurmd")
    assert "-N\0cl4\0" in box.path(f"/proc/{pid}/cmdline").read_text(encoding="ascii")


def test_slurmd_that_does_not_start_is_tried_again(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    claim = bench.claim("cl4", "10.77.1.4")
    box = boot("cl4", claim.address)
    bench.validate(claim, bench.machines.console_of(box))
    with pytest.raises(SlurmdNotStarted, match="slurmd did not start as cl4: slurmd does not start:") as caught:
        bench.validator(slurmd_options=("--no-such-option",)).start_slurmd(claim, bench.pool)
    assert caught.value.again
    listener = "import socket, time; taken = socket.create_server(('', 6818)); time.sleep(600)"
    with box.popen(["python3", "-c", listener]) as taken:
        try:
            box.wait(lambda b: b.listening(6818), 10, "listening")
            with pytest.raises(SlurmdNotStarted, match=r"slurmd started, and is gone: .*listen port"):
                bench.validator().start_slurmd(claim, bench.pool)
        finally:
            taken.kill()
    for server, why in (("headless", "no address where the address of headless"),
                        ("head:6815", "a refused connection where slurmctld at head:6815")):  # fmt: skip
        with pytest.raises(SlurmctldUnreachable, match=f"slurmctld: {why} is expected") as unreachable:
            bench.validate(claim, bench.machines.console_of(box), conf_server=server)
        assert unreachable.value.again
    with pytest.raises(ValueError, match="is not allowed as an option of slurmd"):
        bench.validator(slurmd_options=("a b",)).start_slurmd(claim, bench.pool)
    own = ("touch", "/started-{slot}-from-{conf_server}")
    bench.validator(start_command=own).start_slurmd(claim, bench.pool)
    assert box.path("/started-cl4-from-head").exists()


@pytest.mark.parametrize("cluster", releases("trixie", "bookworm"), indirect=True)
def test_slurmctld_is_down_while_a_node_starts(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    claim = bench.claim("cl6", "10.77.1.6")
    box = boot("cl6", claim.address)
    bench.validate(claim, bench.machines.console_of(box))
    cluster = bench.cluster
    cluster.sh("scontrol update nodename=cl6 state=power_up && scontrol update nodename=cl6 nodeaddr=10.77.1.6")
    cluster.stop_slurmctld()
    # slurmd 22.05 gives up; 24.11 goes on asking, but says that it booted before slurmctld, now, began to wait for it.
    with contextlib.suppress(NodeNotReady):
        bench.validator().start_slurmd(claim, bench.pool)
    cluster.start_slurmctld()

    def idle() -> bool:
        bench.validator().start_slurmd(claim, bench.pool)
        return cluster.sh("sinfo -hn cl6 -o %t").split() == ["idle"]

    cluster.wait(idle, 50, "cl6 idle")
    slurmd = pids(box, "slurmd")
    bench.validator().start_slurmd(claim, bench.pool)
    assert pids(box, "slurmd") == slurmd


def test_a_slurmd_that_slurmctld_takes_no_notice_of(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    """As after a start of slurmctld: slurmd says that it booted earlier (without -b: when the kernel did)."""
    claim = bench.claim("cl7", "10.77.1.7")
    box = boot("cl7", claim.address)
    bench.validate(claim, bench.machines.console_of(box))
    cluster = bench.cluster
    cluster.sh("scontrol update nodename=cl7 state=power_up && scontrol update nodename=cl7 nodeaddr=10.77.1.7")
    cluster.wait(lambda: "POWERING_UP" in cluster.sh("scontrol -o show node cl7"), 10, "cl7 powering up")
    box.run(["slurmd", "-N", "cl7", "--conf-server", "head"])
    box.wait(lambda b: len(pids(b, "slurmd")) == 1, 10, "running one slurmd")
    slurmd = pids(box, "slurmd")
    bench.validator().start_slurmd(claim, bench.pool)
    assert pids(box, "slurmd") == slurmd  # it may be on its way

    def idle() -> bool:
        bench.validator().start_slurmd(claim, bench.pool)
        return cluster.sh("sinfo -hn cl7 -o %t").split() == ["idle"]

    cluster.wait(idle, 30, "cl7 idle")
    assert set(pids(box, "slurmd")).isdisjoint(slurmd)


def test_a_slurmd_whose_node_slurm_has_powered_down(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    """As where the machine was not on record for a while: Slurm hears it no more, and 22.05 keeps its address."""
    claim = bench.claim("cl7", "10.77.1.7")
    box = boot("cl7", claim.address)
    bench.validate(claim, bench.machines.console_of(box))
    cluster = bench.cluster
    cluster.sh("scontrol update nodename=cl7 nodeaddr=10.77.1.7")

    def idle() -> bool:
        bench.validator().start_slurmd(claim, bench.pool)
        return cluster.sh("sinfo -hn cl7 -o %t").split() == ["idle"]

    cluster.wait(idle, 30, "cl7 idle")
    cluster.sh("scontrol update nodename=cl7 state=power_down_force")
    cluster.wait(lambda: "+POWERED_DOWN" in cluster.sh("scontrol -o show node cl7"), 60, "cl7 powered down")
    cluster.sh("scontrol update nodename=cl7 nodeaddr=10.77.1.7")
    cluster.wait(idle, 40, "cl7 idle again")


def test_keys_shown_on_the_console_are_the_machines(bench: ValidationBench, boot: Callable[..., Box]) -> None:
    box = boot("cl5", "10.77.1.5")
    shown = parse_console_host_keys(bench.machines.console_of(box)())
    file = box.run(["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout.split()
    assert shown == {" ".join(file[:2])}
