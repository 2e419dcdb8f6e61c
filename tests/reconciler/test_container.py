"""Scripts that run in containers: their first line, and what it does on a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.staging import Directives
from burstd.planner.staging.transfer_schedule import StorageUse
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.staging.submission.container import (
    MAX_FIRST_LINE_BYTES,
    NO_PROGRAM,
    ContainerRules,
    container_first_line,
    container_variables,
    has_container_line,
)
from burstd.staging.submission.submit_check import SubmitCheck, SubmitCheckRules
from burstd.transfer.privsep.client import Account, UserWorker, UserWorkerError, user_worker_for
from tests.security.fuzz import fuzzed
from tests.transfer.ground import OTHER, USER, give_to_user, root_only, user_folder

LINE = "#!/usr/bin/env -S sh -c 'eval \"${BURST_RUN:?}\"'"
LONGEST = "x" * (MAX_FIRST_LINE_BYTES - len(LINE) - 2)
SAY_ARGUMENTS = f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv))\n"
APPTAINER = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
command = words.index(os.environ["BURST_CONTAINER"]) + 1
print(json.dumps(words[:command]), flush=True)
os.execv(words[command], words[command:])
"""
"""Says its options and runs the command where it is."""


def executable(file: Path, content: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8", errors="surrogateescape")
    file.chmod(0o755)
    return file


def run_in_container(
    tmp_path: Path, script: str, *arguments: str, rules: ContainerRules | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a script as slurmstepd does, with another first line."""
    if rules is None:
        rules = ContainerRules(str(executable(tmp_path / "bin" / "apptainer", APPTAINER)))
    first = container_first_line(script)
    wrapped = first + script[len(script.partition("\n")[0]) :]
    assert container_first_line(wrapped) == first
    file = executable(tmp_path / "job00007" / "slurm_script", wrapped)
    for name in ("in", "out"):
        (tmp_path / "job" / name).mkdir(parents=True, exist_ok=True)
    variables = container_variables(Directives(container="a b.sif"), "ada", f"{tmp_path}/job/in", rules)
    StageReply("ok", env=variables)
    work_dir = tmp_path / "wo rk,d:ir"
    work_dir.mkdir(exist_ok=True)
    environment = {"PATH": "/usr/bin:/bin", "BURST_IN": f"{tmp_path}/job/in", "BURST_OUT": f"{tmp_path}/job/out"}
    return subprocess.run(
        [file, *arguments], env=environment | variables, cwd=work_dir, capture_output=True, text=True, check=False
    )


@pytest.fixture
def short_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="", dir="/tmp") as path:
        yield Path(path)


@pytest.mark.parametrize(
    "argument", ["", " -l", "\t -e  -u ", " it's", r" a\b \c", ' "q" ${HOME} $x', " #no", r" '\''", " -S python3 -u"]
)
def test_interpreter_and_arguments_reach_the_script_as_without_a_container(
    tmp_path: Path, short_path: Path, argument: str
) -> None:
    # The kernel reads 127 bytes of the first line.
    interpreter = executable(short_path / "i", SAY_ARGUMENTS)
    script = f"#! {interpreter}{argument}\n#BURST container x.sif\n"
    arguments = ["", "a b", "it's", '"', "$HOME", "*", "\\", "--nv", "l1\nl2"]
    plain = executable(tmp_path / "job00007" / "slurm_script", script)
    expected = subprocess.run([plain, *arguments], capture_output=True, text=True, check=True).stdout
    done = run_in_container(tmp_path, script, *arguments)
    assert done.stdout.splitlines()[1:] == expected.splitlines(), done


def test_what_is_shown_in_the_container(tmp_path: Path) -> None:
    """The job's directories, what the input leads to and the site's trees; nothing over what the image has."""
    job_in = tmp_path / "job" / "in"
    job_in.mkdir(parents=True)
    data, hidden, tree = tmp_path / "my data", tmp_path / "*", tmp_path / "trees" / "ada"
    for place in (data, hidden, tree):
        place.mkdir(parents=True)
    (job_in / "set").symlink_to(data)
    (job_in / ".hidden").symlink_to(hidden)
    (job_in / "system").symlink_to("/etc")
    (job_in / "gone").symlink_to("/gone")
    program = str(executable(tmp_path / "bin" / "apptainer", APPTAINER))
    rules = ContainerRules(program, (f"{tmp_path}/trees/{{user}}", f"{tmp_path}/not there"))
    done = run_in_container(tmp_path, '#!/bin/sh\necho "$PWD $BURST_CONTAINER"; exit 7', rules=rules)
    options, said = done.stdout.splitlines()
    words = json.loads(options)
    assert (done.returncode, done.stderr, said) == (7, "", f"{tmp_path}/wo rk,d:ir {job_in}/a b.sif")
    assert (words[:4], words[-1]) == (["-q", "exec", "--pwd", f"{tmp_path}/wo rk,d:ir"], f"{job_in}/a b.sif")
    shown = [words[n + 1] for n, word in enumerate(words) if word == "--bind"]
    script = f"{tmp_path}/job00007/slurm_script"
    work_dir = rf"{tmp_path}/wo rk\,d\:ir"
    expected = [str(data), str(hidden), str(tree), f"{tmp_path}/job", script, work_dir]
    assert sorted(shown) == sorted(expected)


def test_scripts_of_any_kind(tmp_path: Path) -> None:
    huge = "".join(f"x{n} = '{'y' * 90}'\n" for n in range(40_000))
    python = f"#!/usr/bin/env python3\n#BURST container x.sif\n{huge}import sys; print(len(sys.argv), x39999[:2])"
    done = run_in_container(tmp_path, python, "a", "b")
    assert done.stdout.splitlines()[1:] == ["3 yy"], done
    assert run_in_container(tmp_path, "#!/bin/true").returncode == 0
    odd = run_in_container(tmp_path, "#!/bin/sh\nprintf 'caf\udce9' | od -An -c\n")
    assert odd.stdout.splitlines()[1:] == ["   c   a   f 351"]


def test_a_node_without_the_program_says_so(tmp_path: Path) -> None:
    done = run_in_container(tmp_path, "#!/bin/sh\necho started\n", rules=ContainerRules("no-such-program"))
    assert (done.returncode, done.stdout) == (NO_PROGRAM, "")
    assert f"burstd: {os.uname().nodename} has no no-such-program, which #BURST container needs" in done.stderr


def test_without_its_variables_the_script_does_not_run(tmp_path: Path) -> None:
    script = executable(tmp_path / "slurm_script", f"{container_first_line('#!/bin/sh')}\necho started\n")
    done = subprocess.run([script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert (done.stdout, "BURST_RUN" in done.stderr) == ("", True)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#!/bin/bash", f"{LINE} /bin/bash"),
        ("#!\t/bin/bash\t-l ", f"{LINE} /bin/bash -l"),
        ("#!/usr/bin/env python3", f"{LINE} /usr/bin/env python3"),
        ("#!/bin/bash -e u", f"{LINE} /bin/bash '-e u'"),
        ("#!", "names no interpreter"),
        ("#!bash", "names no interpreter"),
        ("#!/bin/bash\r", "names no interpreter"),
        (f"#!/{LONGEST}", f"{LINE} /{LONGEST}"),
        (f"#!/{LONGEST}xxx", "argument are 3 bytes too long for a container job"),
    ],
)  # fmt: skip
def test_first_lines(line: str, expected: str) -> None:
    try:
        found = container_first_line(f"{line}\nrest\n")
    except ValueError as error:
        found = str(error)
    assert expected in found if expected[0] != "#" else expected == found


@fuzzed
@given(st.text(), st.text(st.sampled_from("#!/ \t\r\\'\"$\udce9ab"), max_size=80))
def test_fuzz_first_lines(text: str, rest: str) -> None:
    """A line that burstd makes is short, plain text, and fits itself."""
    for script in (text, f"#!{rest}", f"#!/{rest}\n{text}"):
        with suppress(ValueError):
            line = container_first_line(script)
            assert container_first_line(line) == line
            assert line.isprintable() or script.startswith(LINE)
            assert len(line) <= MAX_FIRST_LINE_BYTES or script.startswith(LINE)


def submit_check(open_worker: Callable[[Account, float], UserWorker]) -> SubmitCheck:
    use = StorageUse("x", 0, None)
    rules = SubmitCheckRules(1.0, None, lambda _name: None)
    return SubmitCheck(rules, open_worker, lambda *_: pytest.fail("no objects"), lambda *_: (use, use))


def check(script: str, **info: str) -> StageReply:
    return submit_check(lambda *_: pytest.fail("no files"))(StageCall("check", "1", text=script, info=info))


def test_files_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By burst_buffer/lua where that says whose job it is, else by job_submit.lua."""
    monkeypatch.setattr(
        "burstd.staging.submission.submit_check.account", lambda _uid: Account("ada", 3001, 3001, (3001,), "/home/ada")
    )
    looks: list[str] = []

    def refuse(who: Account, _deadline: float) -> UserWorker:
        looks.append(who.user)
        raise UserWorkerError("", 0, "no worker")

    asked = submit_check(refuse)
    text = "#!/bin/sh\n#BURST stage_in x\n"
    by_job_submit = StageCall("check", "", 3001, 3001, text=text, info={"plugin": "job_submit"})
    asked(by_job_submit)
    assert len(looks) == 1
    asked(StageCall("check", "", None, None, text=text))
    asked(by_job_submit)
    assert len(looks) == 2
    asked(StageCall("check", "", 3001, 3001, text=text))
    assert len(looks) == 3
    asked(by_job_submit)
    assert len(looks) == 3


@root_only
@pytest.mark.boxes
def test_a_file_that_is_no_image_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a machine is paid for; it is read with its owner's rights."""
    who = Account("ada", USER, USER, (USER,), "/")
    monkeypatch.setattr("burstd.staging.submission.submit_check.account", lambda _uid: who)
    with user_folder(OTHER) as folder:
        (folder / "good.sif").write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0")
        (folder / "junk.sif").write_bytes(b"x" * 100)
        (folder / "empty.sif").write_bytes(b"")
        give_to_user(folder)
        found = {}
        for name in ("good", "junk", "empty"):
            text = f"{LINE} /bin/sh\n#BURST container {folder}/{name}.sif\n"
            call = StageCall("check", "", USER, USER, text=text, info={"work_dir": "/"})
            found[name] = submit_check(user_worker_for)(call).text
    assert found.pop("good") == ""
    for name, said in found.items():
        assert said.startswith(f"line 2: container {folder}/{name}.sif: it is no SIF image: make one with"), said


@pytest.mark.parametrize("scratch", ["900T", "shared 900T"])
def test_scratch_that_no_machine_has_is_refused(scratch: str) -> None:
    assert check(f"#!/bin/sh\n#BURST scratch {scratch}\n").text == (
        "scratch of 900 TiB is more than the 400 TiB allowed"
    )


def test_only_what_job_submit_has_changed_is_taken() -> None:
    script = "#!/bin/bash\n#BURST container ~/x.sif\nhostname\n"
    reply = check(script, plugin="job_submit")
    assert (reply.result, reply.text) == ("ok", f"{LINE} /bin/bash")
    wrapped = script.replace("#!/bin/bash", reply.text)
    assert has_container_line(wrapped)
    assert check(wrapped) == StageReply("ok")
    assert check(wrapped, plugin="job_submit").text == reply.text
    for refused in (check(script), check("\n#BURST container ~/x.sif\n", plugin="job_submit")):
        assert refused.result == "refused"
        assert refused.text.startswith("line 2: container ${HOME}/x.sif: nothing starts the script in it. The line")
    assert check(script.replace("/bin/bash", "bash"), plugin="job_submit").text.startswith("line 1: '#!bash' names no")
    assert check("#!/bin/sh\n#BURST stage_in x\n", plugin="job_submit") == StageReply("ok")
