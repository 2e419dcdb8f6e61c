"""Which working directories are staged, what of them, and what is said of those that are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.domain.staging import WorkdirRules
from burstd.staging.submission.workdir import (
    IGNORE_FILE,
    MAX_IGNORE_BYTES,
    check_workdir,
    paths_inside,
    read_ignore_rules,
    workdir_location_fault,
    workdir_size_fault,
)
from burstd.transfer.privsep.client import Account, UserWorker, UserWorkerError, start_user_worker
from burstd.transfer.trees.ignore import IgnoreRules
from tests.transfer.ground import USER, give_to_user, root_only, user_folder

RULES = WorkdirRules(max_bytes=10, max_files=6)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/home/ada/project", ""),
        ("/home/ada/project/", ""),
        ("/home/ada/link/../x", "/home/ada/link/../x has '.', '..' or '//' in it: name it as /home/ada/x with"),
        ("/optional/x", ""),
        ("/usr/local/lib/x", "/usr of a node is its own"),
        ("/opt/burstd/lib", "/opt of a node is its own"),
        ("/var/log/x", "/var of a node is its own"),
        ("/project/x", ""),
        ("/home/bob/project", ""),
        ("/home/ada", "/home/ada is your home directory, with its keys and passwords: submit the job in a directory"),
        ("/home/ada/x/..", "name it as /home/ada with sbatch --chdir"),
        ("/home", "/home is above your home directory"),
        ("/", "/ is above your home directory"),
        ("/usr/bin/x", "/usr/bin of a node is its own, so /usr/bin/x cannot be copied there"),
        ("/var", "/var/lib of a node is its own, so /var cannot be copied there"),
        ("project", "is no absolute path that can be printed"),
        ("", "is no absolute path that can be printed"),
        ("/home/ada/a\nb", "is no absolute path that can be printed"),
    ],
)
def test_where_it_may_lie(path: str, fault: str) -> None:
    found = workdir_location_fault(path, "/home/ada")
    assert fault in found if fault else not found


def test_slurm_s_own_files_in_it() -> None:
    paths = ["/p/slurm-7.out", "/p/logs/../e.err", "/q/o", "/p", "rel", "/pp/o"]
    assert paths_inside("/p/", paths) == {"/p/slurm-7.out": "slurm-7.out", "/p/logs/../e.err": "e.err"}


@pytest.fixture
def project() -> Iterator[Path]:
    with user_folder() as folder:
        (folder / "data").mkdir()
        for name, size in (("data/large", 9), ("data/small", 1), ("a", 3), ("b.tmp", 0), ("slurm-6.out", 5)):
            (folder / name).write_bytes(bytes(size))
        give_to_user(folder)
        yield folder


@pytest.fixture
def worker() -> Iterator[UserWorker]:
    with start_user_worker(USER, USER) as made:
        yield made


@root_only
def test_what_is_too_large_is_named_with_its_largest_parts(project: Path, worker: UserWorker) -> None:
    def fault() -> str:
        ignore = read_ignore_rules(worker, str(project), RULES)
        return workdir_size_fault(str(project), worker.measure_source(str(project), ignore=ignore), RULES)

    said = fault()
    assert f"{project} has 13 B in 6 files and directories; the most is 10 B in 6." in said
    assert "The largest are data (10 B in 3), a (3 B in 1)" in said
    assert ".burstignore" in said
    (project / IGNORE_FILE).write_text("data/\n")
    assert fault() == ""
    (project / IGNORE_FILE).write_text("data/*\n")
    for number in range(5):
        (project / f"e{number}").touch()
    said = fault()
    assert (
        " in 10 files and directories; the most is 10 B in 6. The largest are .burstignore (7 B in 1), a (3 B" in said
    )
    assert ",  (" not in said


@root_only
def test_an_ignore_file_that_cannot_be_used(project: Path, worker: UserWorker) -> None:
    file = project / IGNORE_FILE
    for text, what in (("!\n", "has a line that is no pattern"), ("a\n" * MAX_IGNORE_BYTES, "is larger than 16 KiB")):
        file.write_text(text)
        with pytest.raises(UserWorkerError, match=f"{IGNORE_FILE} {what}"):
            read_ignore_rules(worker, str(project), RULES)
    file.unlink()
    file.symlink_to("/etc/shadow")
    with pytest.raises(UserWorkerError, match=IGNORE_FILE):
        read_ignore_rules(worker, str(project), RULES)
    file.unlink()
    rules = IgnoreRules(read_ignore_rules(worker, str(project), RULES))
    names = ("slurm-6.out", "x/slurm-6.out", ".burst-7-0a", IGNORE_FILE, "a")
    assert {name for name in names if rules.ignores(name, directory=False)} == {
        "slurm-6.out",
        "x/slurm-6.out",
        ".burst-7-0a",
    }


@root_only
def test_a_home_by_another_name(worker: UserWorker) -> None:
    """Its path as the kernel has it is not that of the account."""
    with user_folder(where="/srv") as home, user_folder(where="/srv") as above:
        linked = above / "home"
        linked.symlink_to(home)
        who = Account("ada", USER, USER, (USER,), str(linked))
        for path in (home, linked):
            with pytest.raises(UserWorkerError, match="is your home directory"):
                check_workdir(worker, str(path), who)
        (home / "project").mkdir()
        check_workdir(worker, str(home / "project"), who)
