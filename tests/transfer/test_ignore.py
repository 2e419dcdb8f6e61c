"""What an ignore file means: as pathspec has it for one path, as git has it for a tree."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore import GitIgnorePatternError

from burstd.staging.submission.workdir import compile_ignore_lines
from burstd.transfer.trees.ignore import MAX_REGEX_CHARS, MAX_RULES, IgnoreRules
from burstd.transfer.trees.walk import Walk

TREE = (
    "a.log", "keep.log", "build/x", "build/sub/y", "src/a.c", "src/a.o", "src/build/z", "src/keep/a.o", "data/1.bin",
    "data/small/2.txt", "#note", "!odd", "space ", "deep/er/est/a.o",
)  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "stays"),
    [
        ([], []),
        (["# a comment", ""], []),
        (["*.log", "!keep.log"], ["a.log"]),
        (["build/"], ["build/x", "build/sub/y", "src/build/z"]),
        (["/build/"], ["build/x", "build/sub/y"]),
        (["build/*", "!build/x"], ["build/sub/y"]),
        (["build/", "!build/x"], ["build/x", "build/sub/y", "src/build/z"]),
        (["*", "!*/", "!*.c"], [name for name in TREE if name != "src/a.c"]),
        (["src/**/a.o"], ["src/a.o", "src/keep/a.o"]),
        (["**/est"], ["deep/er/est/a.o"]),
        (["[ab].log", "da?a/*.bin"], ["a.log", "data/1.bin"]),
        (["\\#note", "\\!odd"], ["#note", "!odd"]),
        (["a.o", "!/deep/er/est/a.o"], ["src/a.o", "src/keep/a.o"]),
    ],
)
def test_what_of_a_tree_stays(lines: list[str], stays: list[str], tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in TREE:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    found = set()
    for row, fd in Walk(str(tree), IgnoreRules(compile_ignore_lines(lines))):
        if row[0] == "f":
            found.add(str(row[1]))
            os.close(fd)
    assert found == set(TREE) - set(stays)
    if shutil.which("git") is not None:
        (tmp_path / "lines").write_text("\n".join(lines) + "\n")
        git = ["git", "-C", str(tree), "-c", "core.excludesFile=/dev/null"]
        subprocess.run([*git, "init", "-q"], check=True)
        words = [*git, "ls-files", "-zo", f"--exclude-from={tmp_path / 'lines'}"]
        assert set(filter(None, subprocess.check_output(words, text=True).split("\0"))) == found


names = st.text("ab.*?[]!-#\\ ", min_size=1, max_size=4)
patterns = st.builds(
    lambda mark, parts, slash: mark + "/".join(parts) + slash,
    st.sampled_from(["", "!", "/", "!/"]), st.lists(st.one_of(names, st.just("**")), min_size=1, max_size=3),
    st.sampled_from(["", "/"]),
)  # fmt: skip
parts_of_paths = st.text("ab.!-# ", min_size=1, max_size=4).filter(lambda name: name not in {".", ".."})
paths = st.lists(parts_of_paths, min_size=1, max_size=4).map("/".join)


@given(st.lists(patterns, max_size=6), paths)
def test_a_file_is_ignored_as_pathspec_has_it(lines: list[str], path: str) -> None:
    try:
        spec = GitIgnoreSpec.from_lines(lines)
    except GitIgnorePatternError:
        with pytest.raises(ValueError, match="has a line that is no pattern"):
            compile_ignore_lines(lines)
        return
    rules = compile_ignore_lines(lines)
    assert IgnoreRules(rules).ignores(path, directory=False) == spec.match_file(path)
    assert not IgnoreRules(rules, [path]).ignores(path, directory=False)


def test_rules_are_bounded() -> None:
    with pytest.raises(ValueError, match="more than 1000 patterns"):
        compile_ignore_lines(["!", *["a"] * MAX_RULES])  # The first is no pattern: none was compiled.
    with pytest.raises(ValueError, match="longer than 1000 characters"):
        compile_ignore_lines(["!", "a" * 1001])
    with pytest.raises(ValueError, match="too long"):
        compile_ignore_lines(["*" * 999])
    assert len(compile_ignore_lines(["# " + "a" * 1001, "", *["a" * 10] * MAX_RULES])) == MAX_RULES
    for rows in ([[True, "a"]] * (MAX_RULES + 1), [[True, "a" * (MAX_REGEX_CHARS + 1)]], [[True, 1]]):
        with pytest.raises(ValueError, match="pattern"):
            IgnoreRules(rows)
