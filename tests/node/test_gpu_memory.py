"""What limits jobs' GPU memory on nodes, with programs that play Slurm and NVIDIA's, and a folder for the cgroups."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import cast

import pytest

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.errors import SchedulerUnavailable
from burstd.domain.plugins.shell import CompletedCommand, Shell
from burstd.domain.slurm.shape import Gres, Shape
from burstd.node.checks import failed_checks
from burstd.node.errors import CommandFailed, HeadNotReady
from burstd.node.expected import ExpectedMachine
from burstd.node.facts import MachineFacts
from burstd.node.validation import ValidationRequest, validate_machine
from burstd.node.validator import SlurmNodeValidator, ValidatorConfig
from tests.node.test_validate import FACTS, KEY, Recorder

REGIONS = ("nvidia/0000:04:00.0/vidmem", "nvidia/0000:05:00.0/vidmem")
# Its hostlists have single numbers between the brackets.
_SCONTROL = r"""#!/bin/sh
case $* in
"show hostnames "*)
    case $3 in
    *"["*) echo "${3#*[}" | tr -d ']' | tr , '\n' | sed "s/^/${3%%[*}/" ;;
    *) echo "$3" ;;
    esac
    ;;
"-d show job 7")
    if [ -s "$0.refusals" ]; then sed -i 1d "$0.refusals"; echo "Unable to contact slurm controller"; exit 1; fi
    cat "$0.says"
    ;;
*) exit 9 ;;
esac
"""
_MPS = """#!/bin/sh
read command; [ "$command" = get_server_list ] && exit "$(cat "$0.rc")"
"""
_SMI = """#!/bin/sh
case $* in "--query-gpu=memory.total --format=csv,noheader,nounits") cat "$0.says" ;; *) exit 9 ;; esac
"""


def script(name: str) -> str:
    return files("burstd.node").joinpath("scripts", name).read_text(encoding="utf-8")


class LimitedNode:
    """The node n1, whose GPUs have four shards each."""

    def __init__(self, folder: Path, limit: str) -> None:
        self.folder = folder
        self.scope = folder / "cgroup" / "system.slice" / "slurmstepd.scope"
        self.scope.mkdir(parents=True)
        for group in (self.scope, *self.scope.parents[:2]):
            (group / "cgroup.subtree_control").write_text("cpuset cpu memory pids\n")
        self.capacity = folder / "cgroup" / "dmem.capacity"
        self.capacity.write_text("".join(f"{region} {(80 << 30) + 4096}\n" for region in REGIONS))
        for name, text in (("scontrol", _SCONTROL), ("nvidia-cuda-mps-control", _MPS), ("nvidia-smi", _SMI)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "sleep").symlink_to("/bin/true")
        (folder / "nvidia-cuda-mps-control.rc").write_text("0")
        (folder / "nvidia-smi.says").write_text("81559\n81251\n")
        self.limit = limit
        self.brought = self.bring()

    def bring(self) -> subprocess.CompletedProcess[str]:
        bring, hook = self._moved(script("gpu_memory_limit.sh")), self._moved(script("gpu_memory_prolog.sh"))
        words = ["sh", "-c", bring, "sh", self.limit, "4"]
        return subprocess.run(words, input=hook, capture_output=True, text=True, check=False)

    def _moved(self, text: str) -> str:
        """The script with this folder in place of a machine's."""
        text = text.replace("PATH=/usr/sbin", f"PATH={self.folder}:/usr/sbin")
        for path in ("/etc/burstd", "/run/burstd", "/sys/fs/cgroup"):
            text = text.replace(path, str(self.folder / path.rpartition("/")[2]))
        return text

    def run(self, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", **environment}
        return subprocess.run([self.folder / "burstd" / name], env=env, capture_output=True, text=True, check=False)

    def prolog(self, *rows: str, name: str = "train", **environment: str) -> subprocess.CompletedProcess[str]:
        """``rows`` of the job's record say what it has on which nodes."""
        text = "".join(f"     Nodes={row}\n" for row in rows)
        (self.folder / "scontrol.says").write_text(
            f"JobId=7 JobName={name}\n   JOB_GRES=shard:9\n{text}   Features=x\n"
        )
        return self.run("true", SLURM_SCRIPT_CONTEXT="prolog_slurmd", **environment)

    def environment(self) -> list[str]:
        """What TaskProlog says of it."""
        done = self.run("task-prolog", SLURM_SCRIPT_CONTEXT="prolog_task")
        assert done.returncode == 0
        return done.stdout.splitlines()

    def limits(self, name: str = "job_7") -> dict[str, int]:
        file = self.scope / name / "dmem.max"
        lines = file.read_text().splitlines() if file.exists() else []
        return {region: int(size) for region, size in (line.split() for line in lines)}


@pytest.fixture
def mps(tmp_path: Path) -> LimitedNode:
    return LimitedNode(tmp_path, "mps")


@pytest.fixture
def dmem(tmp_path: Path) -> LimitedNode:
    return LimitedNode(tmp_path, "dmem")


# As Slurm 24.11 and 26.05 have them; 22.05; and of several kinds of nodes.
ROWS = [
    (("n1 CPU_IDs=0 Mem=10 GRES=shard:2(2/4,0/4)",), 2),
    (("n1 CPU_IDs=0 Mem=10 GRES=shard:3(IDX:0)",), 3),
    (("n[2,1] CPU_IDs=0-3 Mem=10 GRES=nvme:1,shard:(null):1(0/4,1/4)",), 1),
    (("n2 CPU_IDs=0 Mem=10 GRES=shard:1(1/4,0/4)", "n1 CPU_IDs=0 Mem=10 GRES=shard:4(4/4,0/4)"), 4),
    # Shards of two GPUs (MULTIPLE_SHARING_GRES_PJ): no more of each than there is.
    (("n1 CPU_IDs=0 Mem=10 GRES=shard:6(4/4,2/4)",), 4),
    (("n1 CPU_IDs=0 Mem=10 GRES=gpu:v100:1(IDX:0)", "n2 CPU_IDs=0 Mem=10 GRES=shard:1(1/4,0/4)"), 0),
    (("n1 CPU_IDs=0 Mem=10 GRES=",), 0),
]


@pytest.mark.parametrize(("rows", "shards"), ROWS)
def test_mps_has_a_jobs_limits_in_its_environment(mps: LimitedNode, rows: tuple[str, ...], shards: int) -> None:
    done = mps.prolog(*rows)
    assert (done.returncode, done.stderr) == (0, "")
    expected = [
        f"export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={81251 * shards // 4}M",
        f"export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={25 * shards}",
    ]
    assert mps.environment() == (expected if shards else [])
    assert mps.limits() == {}


@pytest.mark.parametrize(("rows", "shards"), ROWS)
def test_the_kernel_has_a_jobs_limits_in_its_cgroup(dmem: LimitedNode, rows: tuple[str, ...], shards: int) -> None:
    done = dmem.prolog(*rows)
    assert (done.returncode, done.stderr) == (0, "")
    assert dmem.limits() == (dict.fromkeys(REGIONS, shards * (20 << 30)) if shards else {})
    assert dmem.environment() == []


def test_each_folder_above_hands_the_controller_down(dmem: LimitedNode) -> None:
    groups = [dmem.scope, *dmem.scope.parents[:2]]
    (groups[1] / "cgroup.subtree_control").write_text("cpu dmem memory\n")
    assert dmem.prolog("n1 GRES=shard:1").returncode == 0
    read = [(group / "cgroup.subtree_control").read_text() for group in groups]
    assert read == ["+dmem\n", "cpu dmem memory\n", "+dmem\n"]


@pytest.mark.parametrize(
    "name", ["a\n     Nodes=n1 GRES=shard:4(4/4)\n", "a\nJobId=8 JobName=b\n     Nodes=n2 GRES=shard:4"]
)
def test_a_users_words_raise_no_limit(dmem: LimitedNode, name: str) -> None:
    assert dmem.prolog("n1 CPU_IDs=0 Mem=10 GRES=shard:1(1/4,0/4)", name=name).returncode == 0
    assert dmem.limits() == dict.fromkeys(REGIONS, 20 << 30)


def test_a_jobs_cgroup_has_the_name_that_its_slurm_gives_it(dmem: LimitedNode) -> None:
    """An earlier one that slurmstepd did not take goes; what is a running job's stays."""
    unused, used = dmem.scope / "job_5", dmem.scope / "s8M1M8617Y7900"
    unused.mkdir()
    (used / "step_extern").mkdir(parents=True)
    for folder in (unused, used):
        os.utime(folder, (0, 0))
    assert dmem.prolog("n1 GRES=shard:1", SLURM_JOB_SLUID="sEKNKTV3WPV500").returncode == 0
    assert dmem.limits("sEKNKTV3WPV500") == dmem.limits() == dict.fromkeys(REGIONS, 20 << 30)
    assert (unused.exists(), used.exists()) == (False, True)


def test_a_job_that_comes_again_has_the_limit_of_its_last_start(mps: LimitedNode) -> None:
    mps.prolog("n1 GRES=shard:1")
    assert mps.environment()
    mps.prolog("n1 GRES=gpu:1")
    assert mps.environment() == []


def test_slurmctld_may_just_be_starting(mps: LimitedNode) -> None:
    (mps.folder / "scontrol.refusals").write_text("1\n2\n")
    assert mps.prolog("n1 GRES=shard:1").returncode == 0
    assert mps.environment()


@pytest.mark.parametrize(
    ("rows", "broken", "says"),
    [
        (("n2 GRES=shard:1",), {}, "scontrol does not say what it has on n1"),
        ((), {}, "scontrol does not say what it has on n1"),
        (("n1 GRES=shard:1",), {"scontrol.refusals": "1\n2\n3\n4\n5\n"}, "Unable to contact slurm controller"),
        (("n1 GRES=shard:1",), {"nvidia-cuda-mps-control.rc": "1"}, "the MPS control daemon does not answer"),
        (("n1 GRES=shard:1",), {"burstd/gpu-memory": "a file"}, "cannot be written"),
    ],
)
def test_a_job_that_mps_cannot_limit_does_not_begin(
    mps: LimitedNode, rows: tuple[str, ...], broken: dict[str, str], says: str
) -> None:
    for name, text in broken.items():
        (mps.folder / name).write_text(text)
    done = mps.prolog(*rows)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("the GPU memory of job 7 cannot be limited: ")
    assert says in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("rm -r system.slice/slurmstepd.scope", "no slurmstepd.scope in"),
        ("rm dmem.capacity", "names no GPU"),
        (": >dmem.capacity", "names no GPU"),
        ("rm cgroup.subtree_control; mkdir cgroup.subtree_control", "does not take the controller dmem"),
        ("mkdir -p system.slice/slurmstepd.scope/job_7/dmem.max", "the kernel does not take the limits"),
        # Takes what is written, and does not keep it.
        ("mkdir -p system.slice/slurmstepd.scope/job_7; ln -s /dev/null system.slice/slurmstepd.scope/job_7/dmem.max",
         "the kernel has other limits than"),
    ],
)  # fmt: skip
def test_a_job_that_the_kernel_cannot_limit_does_not_begin(dmem: LimitedNode, broken: str, says: str) -> None:
    subprocess.run(["sh", "-c", broken], cwd=dmem.folder / "cgroup", check=True)
    done = dmem.prolog("n1 GRES=shard:1")
    assert done.returncode == 1
    assert says in done.stderr


def test_it_is_brought_once_more(mps: LimitedNode) -> None:
    assert mps.bring().returncode == 0
    folder = mps.folder / "burstd"
    assert sorted(path.name for path in folder.iterdir()) == ["gpu-memory-limit", "task-prolog", "true"]
    assert (folder / "gpu-memory-limit").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("said", ["", "[N/A]\n", "81559\n[Not Supported]\n"])
def test_gpus_whose_memory_is_not_known_are_refused(mps: LimitedNode, said: str) -> None:
    (mps.folder / "nvidia-smi.says").write_text(said)
    done = mps.bring()
    assert (done.returncode, "nvidia-smi names no memory of a GPU" in done.stderr) == (1, True)


TWO = Shape(1, 1, (Gres("gpu", "", 2),))


@pytest.mark.parametrize(
    ("limit", "facts", "says"),
    [
        ("none", {}, []),
        ("mps", {"mps": "answers"}, []),
        ("mps", {"mps": "silent"}, ["gpu_memory_limit: one that does not answer where a control daemon of MPS"]),
        ("mps", {}, ["gpu_memory_limit: no nvidia-cuda-mps-control where a control daemon of MPS that answers is"]),
        ("dmem", {"dmem": REGIONS}, []),
        ("dmem", {"mps": "answers"}, ["gpu_memory_limit: no regions in /sys/fs/cgroup/dmem.capacity where the cgroup"]),
        (
            "dmem",
            {"dmem": REGIONS[:1]},
            ["gpu_memory_limit: 1 region in /sys/fs/cgroup/dmem.capacity where the cgroup"],
        ),
    ],
)
def test_a_machine_that_cannot_limit_is_refused(limit: str, facts: dict[str, object], says: list[str]) -> None:
    expected = ExpectedMachine(TWO, (), gpu_memory_limit=limit, shards_per_gpu=4)  # type: ignore[arg-type]
    found = [str(one) for one in failed_checks(MachineFacts(**facts), expected) if one.name == "gpu_memory_limit"]  # type: ignore[arg-type]
    assert len(found) == len(says)
    assert all(one.startswith(start) for one, start in zip(found, says, strict=True))


def test_what_limits_comes_before_the_secrets() -> None:
    facts = FACTS.replace("end=1", "gpu_device=/dev/nvidia0\ngpu_device=/dev/nvidia1\nmps=answers\nend=1")
    expected = ExpectedMachine(
        Shape(2, 1000, (Gres("gpu", "", 2),)), (22, 5, 8), gpu_memory_limit="mps", shards_per_gpu=4
    )
    request = ValidationRequest(expected, KEY, lambda uid: f"credential {uid}", lambda: 1000.0)
    recorder = Recorder([CompletedCommand(0, facts, ""), CompletedCommand(0, "", ""), CompletedCommand(0, "", "")])
    assert validate_machine(request, lambda: cast("Shell", recorder)).failures == ()
    assert recorder.asked[1] == (f"{script('gpu_memory_limit.sh')} mps 4", script("gpu_memory_prolog.sh").encode())
    failing = Recorder([CompletedCommand(0, facts, ""), CompletedCommand(1, "", "no room")])
    with pytest.raises(CommandFailed, match="nothing can limit GPU memory there: no room") as caught:
        validate_machine(request, lambda: cast("Shell", failing))
    assert caught.value.cause == "gpu_memory_limit"


def lacking(_pool: Pool) -> list[str]:
    return ["Prolog: nothing limits it: set Prolog=x"]


def silent(_pool: Pool) -> list[str]:
    raise SchedulerUnavailable("slurmctld is down")


@pytest.mark.parametrize(
    ("slurm", "says"),
    [
        (lambda _pool: [], ""),
        (lacking, "slurm.conf lacks what pool half promises. Prolog: nothing limits it: set Prolog=x"),
        (silent, "slurmctld does not say whether it keeps what pool half promises: slurmctld is down"),
    ],
)
def test_no_machine_is_a_node_while_slurm_conf_lacks_the_lines(
    slurm: Callable[[Pool], list[str]], says: str, tmp_path: Path
) -> None:
    facts = FACTS.replace("uid=1000", "uid=0").replace("end=1", "gpu_device=/dev/nvidia0\nmps=answers\nend=1")
    pool = Pool("half", ("n1",), (), Shape(2, 1000, (Gres("gpu", "", 1), Gres("shard", "", 4))), gpu_memory_limit="mps")
    offer = Offer("sky", "here", "a", "gpu1", spot=False, shape=pool.shape, price=Decimal(1))
    claim = Claim("c", "lab", "half", "n1", offer, Cause.DEMAND, ClaimState.BOOTING, 0.0, 0.0, instance_id="i")
    recorder = Recorder([CompletedCommand(0, facts, ""), CompletedCommand(0, "", ""), CompletedCommand(0, "", "")])
    (tmp_path / "munge.key").write_bytes(KEY)
    validator = SlurmNodeValidator(
        ValidatorConfig(tmp_path / "key", tmp_path, tmp_path / "munge.key", "", users=()),
        slurm_version=lambda: (22, 5), wall=lambda: 1000.0, credential=lambda _uid: "credential",
        shells={"sky": lambda _instance, _timeout_s: cast("Shell", recorder)}, slurm_faults=slurm,
    )  # fmt: skip
    if says:
        with pytest.raises(HeadNotReady, match=re.escape(says)):
            validator.validate(claim, pool, None, lambda: None)
    else:
        assert "1 GPUs whose memory MPS divides" in validator.validate(claim, pool, None, lambda: None)
