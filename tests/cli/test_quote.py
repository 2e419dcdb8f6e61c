"""burstctl quote: sbatch reads the words, burstd hears what the job asks for and nothing else, and the answer."""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import policies.budget
from burstd.api.answers.quote import QuotesView
from burstd.cli.commands.quote import print_quotes
from burstd.cli.output import ConsoleOutput
from burstd.domain.billing.use import IdleMode
from burstd.domain.command import Command, CommandResult, QuoteJobs
from burstd.domain.errors import NoAnswer
from burstd.domain.slurm.job_history import EndedJob, JobHistory
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.explain.quote import quote_jobs
from burstd.planner.policy_chain import make_target
from tests.api.client import ME, ApiTestClient
from tests.api.fake_backend import PLAN, FakeBackend
from tests.api.world import SNAPSHOT

from .conftest import NOBODY, Run

BIN = 2
"""Whose user has no job in this world."""
OPTIONS = """\
sbatch: defined options
sbatch: -------------------- --------------------
sbatch: comment             : for me alone
sbatch: export              : SECRET=hunter2
sbatch: gres                : gres/gpu:1
sbatch: partition           : burst
sbatch: time                : 02:00:00
sbatch: -------------------- --------------------
sbatch: end of defined options
"""
REFUSED = f"{OPTIONS}allocation failure: Requested node configuration is not available\n"
CONFIG = "AccountingStorageType   = (null)\nDefMemPerNode = 100\nSelectTypeParameters    = CR_CPU_MEMORY\n"
PARTITIONS = "PartitionName=burst State=UP MaxTime=UNLIMITED\nPartitionName=onprem State=UP Default=YES\n"
QUEUED = {
    "JobID": "4711", "JobArrayID": "4711", "State": "PENDING", "Partition": "burst", "NumNodes": "1", "NumCPUs": "1",
    "MinMemory": "100M", "tres-per-node": "gres/gpu:1", "TimeLimit": "2:00:00", "UserName": ME, "Reason": "None",
    "Name": "train.sh", "Comment": "for me alone", "Requeue": "1", "BatchFlag": "1",
}  # fmt: skip
assert isinstance(SNAPSHOT.slurm, SlurmView)
BUSY = replace(SNAPSHOT.slurm.nodes["gpu2"], state="ALLOCATED", cpus_allocated=8)
FULL = replace(SNAPSHOT.slurm, nodes={**SNAPSHOT.slurm.nodes, "gpu2": BUSY})
"""No open node has room."""


class Commands:
    """Slurm's commands in a folder of PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.says("sbatch", REFUSED, 1)
        for name, text in (("config", CONFIG), ("partition", PARTITIONS)):
            (folder / name).write_text(text)
        (folder / "scontrol").write_text(f'#!/bin/sh\nfor last; do :; done\ncat "{folder}/$last"\n')
        (folder / "scontrol").chmod(0o755)

    def says(self, name: str, text: str, status: int = 0) -> None:
        (self.folder / f"{name}.said").write_text(text)
        program = self.folder / name
        program.write_text(
            f'#!/bin/sh\necho "$*" >> "{self.folder}/words"\ncat "{self.folder}/{name}.said" >&2\nexit {status}\n'
        )
        program.chmod(0o755)

    def queues(self, *rows: dict[str, str]) -> None:
        """squeue has these jobs of ours."""
        (self.folder / "squeue.json").write_text(json.dumps([QUEUED | row for row in rows]))
        program = self.folder / "squeue"
        program.write_text(
            f"#!{sys.executable} -IS\nimport json, os\n"
            "ends = [field.split(':0', 1) for field in os.environ['SQUEUE_FORMAT2'].split(',')]\n"
            f"for row in json.load(open({str(self.folder / 'squeue.json')!r})):\n"
            "    print(''.join(row.get(name, '') + end for name, end in ends))\n"
        )
        program.chmod(0o755)

    def words(self) -> list[str]:
        return (self.folder / "words").read_text().splitlines()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "train.sh").write_text("#!/bin/bash\n#BURST stage_in /data/x\nexport TOKEN=hunter3\n")
    monkeypatch.chdir(tmp_path)
    return Commands(tmp_path)


def quoting(*chain: Any, **fields: Any) -> Any:
    """burstd's own answer in the world of these tests."""
    snapshot: Snapshot = replace(SNAPSHOT, **fields)

    def answer(command: Command) -> CommandResult:
        assert isinstance(command, QuoteJobs)
        found = quote_jobs(snapshot, PLAN, command.jobs, command.usable, lambda seen: make_target(seen, chain))
        return CommandResult("", quotes=found)

    return answer


ANSWER = """\
The job asks for 1 node, 1 CPU, 100 MiB per node, gpu:1 per node, 120 min.
  It is expected to run about 2 h: by its time limit, for no run like it is
  known.
  As it is: boot: the job gets a new node in pool gpu: gpu6,
  sandbox/local/a/g4/on-demand.
  Not counted is what it may wait for besides: data of its #BURST lines.

   WAY                STARTS  90 %   ENDS  90 %           COST  TO LIMIT
1  gpu: g4 on-demand  40 s    100 s  2 h   2 h 1 min  1.56 EUR  6.15 EUR
  90 %: by then with that chance. COST: its share, and the boot. TO LIMIT: whole
  machines, or what a budget reserves. Idle time and further runs are not in
  them.

1  nothing to add

Not taken
  cpu: a node lacks gpu:1
"""


def test_the_answer_as_people_see_it(run: Run, backend: FakeBackend, slurm: Commands) -> None:
    backend.answer = quoting(slurm=FULL)
    out = run("quote", "-p", "burst", "train.sh", columns=80).out
    assert out == ANSWER
    assert slurm.words() == ["--test-only -v -p burst train.sh"]


def test_burstd_hears_what_the_job_asks_for_and_no_line_of_the_script(
    run: Run, backend: FakeBackend, slurm: Commands
) -> None:
    backend.answer = quoting()
    out = run("quote", "--json", "train.sh").out
    [command] = backend.commands
    assert isinstance(command, QuoteJobs)
    (asked,) = command.jobs
    assert (asked.user, asked.name, asked.gres_per_node) == (ME, "train.sh", (Gres("gpu", "", 1),))
    assert (asked.time_limit_s, asked.memory_mib, asked.comment) == (7200.0, 100, "")
    assert [one.name for one in command.usable] == ["burst", "onprem"]
    for text in (repr(command), out):
        assert "hunter" not in text
        assert "for me alone" not in text
    answer = json.loads(out)
    assert answer["waits_for"] == ["data of its #BURST lines"]
    assert {way["market"] for way in answer["quotes"][0]["ways"] if way["taken"]} <= {"", "on-demand", "spot"}


def test_words_of_sbatch_need_no_dashes_before_them(run: Run, backend: FakeBackend, slurm: Commands) -> None:
    backend.answer = quoting()
    for words in (("--", "-n2", "--wrap", "x y"), ("--wrap=x", "--json"), ("--json", "-Jhelp", "train.sh", "-h")):
        assert run("quote", *words).code == 0
    assert slurm.words() == [
        "--test-only -v -n2 --wrap x y", "--test-only -v --wrap=x", "--test-only -v -Jhelp train.sh -h",
    ]  # fmt: skip
    assert [c.jobs[0].name for c in backend.commands if isinstance(c, QuoteJobs)] == ["wrap", "wrap", "train.sh"]


def test_what_else_keeps_the_job_from_starting(run: Run, backend: FakeBackend, slurm: Commands) -> None:
    backend.answer = quoting()
    (slurm.folder / "partition").write_text("PartitionName=burst State=UP MaxTime=00:30:00\n")
    script = "#!/bin/bash\n#BURST volume corpus 100G\n#BURST stage_in /data/x\n"
    (slurm.folder / "train.sh").write_text(script)
    assert json.loads(run("quote", "--json", "train.sh").out)["waits_for"] == [
        "MaxTime=00:30:00 of burst",
        "volumes of its #BURST lines, which leave it the pool and the place of their disks alone",
        "data of its #BURST lines",
    ]
    [command] = backend.commands
    assert isinstance(command, QuoteJobs)
    assert command.usable == ()


def test_limits_of_qos_and_associations_that_slurm_enforces(run: Run, backend: FakeBackend, slurm: Commands) -> None:
    backend.answer = quoting()
    said = f"ClusterName=c Account= UserName={ME}(1) MaxJobs=2(1)\nQOS Records\nQOS=gpus(1) MaxWallPJ=60\n"
    (slurm.folder / "flags=assoc,qos").write_text(said)
    (slurm.folder / "partition").write_text("PartitionName=burst State=UP QoS=gpus\n")
    for enforced, limits in (("none", []), ("limits", [f"MaxJobs=2 of {ME} in  (1 used)", "MaxWallPJ=60 of QOS gpus"])):
        (slurm.folder / "config").write_text(f"{CONFIG}AccountingStorageEnforce = {enforced}\n")
        assert json.loads(run("quote", "--json", "train.sh").out)["waits_for"][:-1] == limits


def test_words_that_are_pipes_are_not_waited_for(run: Run, backend: FakeBackend, slurm: Commands) -> None:
    backend.answer = quoting()
    os.mkfifo(slurm.folder / "pipe")
    assert run("quote", "-o", "pipe", "train.sh").code == 0
    assert [c.jobs[0].name for c in backend.commands if isinstance(c, QuoteJobs)] == ["train.sh"]


@pytest.mark.parametrize(
    ("said", "code", "says"),
    [
        ("sbatch: unrecognized option '--nonsense'\n", 2, "burstctl: sbatch: unrecognized option '--nonsense'."),
        (f"{OPTIONS}allocation failure: Invalid qos\n", 0, "Slurm refuses it as it is: allocation failure: Invalid"),
        (f"{OPTIONS}sbatch: Job 7 to start at now\n", 0, "Slurm says: Job 7 to start at now."),
        (OPTIONS.replace("sbatch: gres", "sbatch: begin    : later\nsbatch: gres"), 0,
         "Not counted is what it may wait for besides: --begin=later, data of its #BURST"),
    ],
)  # fmt: skip
def test_what_slurm_says(run: Run, backend: FakeBackend, slurm: Commands, said: str, code: int, says: str) -> None:
    backend.answer = quoting()
    slurm.says("sbatch", said, 0 if "to start" in said else 1)
    outcome = run("quote", "train.sh")
    assert outcome.code == code
    assert says in outcome.out + outcome.err


def test_an_array_costs_as_much_as_all_of_its_tasks(run: Run, backend: FakeBackend, slurm: Commands) -> None:
    backend.answer = quoting(slurm=FULL)
    slurm.says("sbatch", OPTIONS.replace("sbatch: gres", "sbatch: array      : 1-100%8\nsbatch: gres"))
    out = run("quote", "train.sh").out
    assert "It is an array of 100 tasks: times are of the first, costs of all." in out
    assert "156.40 EUR  615.40 EUR" in out


def test_no_sbatch_here(run: Run, slurm: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "sbatch is not installed here" in run("quote", "train.sh").err


@pytest.mark.parametrize(
    ("row", "fields", "says"),
    [
        ({}, {"slurm": FULL}, "starts {}; costs about 1.56 EUR, 6.15 EUR at most"),
        (
            {"Reason": "JobHeldUser", "TimeLimit": "UNLIMITED"},
            {"slurm": FULL},
            "waits first (JobHeldUser); then starts {}; costs about 0.80 EUR, and it has no time limit",
        ),
        (
            {"JobArrayID": "4711_[1-100%8]", "ArrayJobID": "4711", "ArrayTaskID": "1-100%8"},
            {"slurm": FULL},
            "the first task starts {}; all cost about 156.40 EUR, 615.40 EUR at most",
        ),
        (
            {"Feature": "h100"},
            {},
            "cannot start: no node in pool gpu has feature h100; no node in pool cpu has feature h100",
        ),
    ],
)
def test_a_job_that_waits_in_a_line(
    run: Run, backend: FakeBackend, slurm: Commands, row: dict[str, str], fields: dict[str, Any], says: str
) -> None:
    backend.answer = quoting(**fields)
    slurm.queues(row)
    out = run("quote", "--brief", "--job", "4711").out
    assert out == f"burstd: {says.format('in about 1 min (90 %: 100 s), gpu: g4 on-demand')}\n"
    [command] = backend.commands
    assert isinstance(command, QuoteJobs)
    (job,) = command.jobs
    assert (job.id, job.user, job.comment, command.usable) == ("4711", ME, "", ())


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (IdleMode.APART, "Idle time and further runs are not in them."),
        (IdleMode.BY_USE, "Idle time, for which the jobs that run on a machine are charged by their work, and further"),
        (IdleMode.TO_CAUSE, "Idle time, for which the jobs that a machine was started for are charged, and further"),
    ],
)
def test_costs_without_idle_time_say_who_is_charged_for_it(
    run: Run, backend: FakeBackend, slurm: Commands, mode: IdleMode, says: str
) -> None:
    backend.answer = quoting(slurm=FULL)
    backend.reader.idle_mode = mode
    slurm.queues({})
    assert says in run("quote", "--job", "4711").out
    brief = run("quote", "--brief", "--job", "4711").out
    assert ("at most, besides idle time of its machines\n" in brief) is (mode is not IdleMode.APART)


def test_components_and_budgets_in_lines(run: Run, backend: FakeBackend, slurm: Commands) -> None:
    settings = {"projects": {"lhc": {"limit": "2.00"}}}
    budget = policies.budget.plugin.make(policies.budget.BudgetSettings.model_validate(settings))
    backend.answer = quoting(budget, slurm=FULL)
    het = {"JobID": "4711", "HetJobID": "4711", "HetJobOffset": "0", "Account": "lhc", "TimeLimit": "10:00"}
    slurm.queues(het, {**het, "JobArrayID": "4711+1", "HetJobOffset": "1", "TimeLimit": "2:00:00"})
    lines = run("quote", "--brief", "--job", "4711").out.splitlines()
    assert [line[:20] for line in lines] == ["burstd: component 0 ", "burstd: component 1 ", "burstd: budget of pr"]
    assert lines[2] == "burstd: budget of project lhc: 2.00 EUR left of 2.00 EUR (month)"


def test_a_job_that_does_not_wait_or_is_of_others(run: Run, slurm: Commands) -> None:
    slurm.queues({"State": "RUNNING"})
    outcome = run("quote", "--job", "4711")
    assert (outcome.code, outcome.err) == (1, "burstctl: Job 4711 does not wait.\n")
    slurm.queues({"UserName": "eve"})
    outcome = run("quote", "--job", "4711")
    assert (outcome.code, outcome.err) == (4, "burstctl: Job 4711 is eve's: eve may ask.\n")
    for words in ((), ("--job", "4711", "train.sh")):
        assert "either the words of an sbatch or --job" in run("quote", *words).err


def test_burstd_rests(run: Run, backend: FakeBackend, slurm: Commands) -> None:
    def answer(_: Command) -> CommandResult:
        raise NoAnswer("burstd has just worked out another quote; try again in 3 s")

    backend.answer = answer
    outcome = run("quote", "train.sh")
    assert (outcome.code, outcome.err) == (3, "burstctl: burstd has just worked out another quote; try again in 3 s\n")


def test_figures_of_an_account_are_for_those_with_jobs_in_it(backend: FakeBackend, control: Path) -> None:
    """Nor does an answer hang on them: time limits that are open and closed would tell them to the cent."""
    job = {
        "partitions": ["burst"],
        "account": "secret",
        "time_limit_s": 7200,
        "gres_per_node": [{"name": "gpu", "count": 1}],
    }
    body = {"jobs": [job], "usable_partitions": [{"name": "burst"}]}
    to_root: list[dict[str, Any]] = []
    to_other: list[dict[str, Any]] = []
    ran = [
        EndedJob(str(n), "bob", "secret", "x", ("burst",), 1, 1, 1, 9000.0, 0.0, 0.0, 3333.0, True) for n in range(9)
    ]
    for limit, ended in (("0.01", ()), ("99999", ran)):
        settings = {"projects": {"secret": {"limit": limit}}}
        budget = policies.budget.plugin.make(policies.budget.BudgetSettings.model_validate(settings))
        backend.answer = quoting(budget, slurm=FULL, history=JobHistory.from_jobs(ended))
        with ApiTestClient(control) as root, ApiTestClient(control, BIN) as other:
            for client, answers in ((root, to_root), (other, to_other)):
                answers.append(client.request("POST", "/v1/quote", body)[1]["quotes"][0])
    assert ["project secret is 0.01" in answer["summary"] for answer in to_root] == [True, False]
    assert "of secret" in to_root[1]["run_basis"]
    assert backend.commands[1].by != backend.commands[0].by
    for answer in to_other:
        assert (answer["unseen_account"], answer["verdict"], answer["budgets"]) == ("secret", "boot", [])
    poor, rich = ({k: v for k, v in answer.items() if k in ("verdict", "summary", "changes")} for answer in to_other)
    assert poor == rich
    assert "secret" not in to_other[1]["run_basis"]
    assert [command.jobs[0].account for command in backend.commands if isinstance(command, QuoteJobs)][:2] == [
        "secret",
        "",
    ]


def test_an_account_that_is_not_looked_at_is_named(backend: FakeBackend, control: Path) -> None:
    settings = {"projects": {"*": {"limit": "0.01"}}}
    budget = policies.budget.plugin.make(policies.budget.BudgetSettings.model_validate(settings))
    backend.answer = quoting(budget, slurm=FULL)
    body = {"jobs": [{"partitions": ["burst"], "account": "lhc", "time_limit_s": 7200}], "usable_partitions": []}
    with ApiTestClient(control, NOBODY) as other:
        answer = QuotesView.model_validate(other.request("POST", "/v1/quote", body)[1])
    text = StringIO()
    with redirect_stdout(text):
        print_quotes(ConsoleOutput(), answer)
    assert "Account lhc, its budget and its past jobs are not looked at" in text.getvalue()
    assert "a budget does not allow it; that of its account is not looked at" in text.getvalue()
    assert "name one" not in text.getvalue()


@pytest.mark.parametrize(
    "body",
    [
        {"jobs": []},
        {"jobs": [{"partitions": []}]},
        {"jobs": [{"partitions": ["burst"], "nodes": 0}]},
        {"jobs": [{"partitions": ["burst"], "time_limit_s": 1e99}]},
        {"jobs": [{"partitions": ["burst"], "user": "root"}]},
        {"jobs": [{"partitions": ["burst"], "name": "x" * 1001}]},
    ],
)
def test_values_that_cannot_be(control: Path, body: dict[str, Any]) -> None:
    with ApiTestClient(control) as client:
        assert client.request("POST", "/v1/quote", body)[0] == 422
