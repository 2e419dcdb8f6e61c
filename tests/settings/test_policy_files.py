"""Policies of the site's own files: found, trusted, read afresh, and named with file and line where they are wrong."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest

from burstd.domain.plugins.policy import Policy, Target
from burstd.settings import PluginRegistry, SettingsError, make_policies, parse_settings, resolve_plugins
from burstd.testing.policy.policy_samples import samples

GOOD = """\
from dataclasses import dataclass
from pydantic import BaseModel, ConfigDict
from burstd.domain.plugins.policy import PolicyPlugin

class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    word: str = "night"

@dataclass(frozen=True)
class One:
    settings: Settings
    name: str = "NAME"
    def evaluate(self, snapshot, target):
        return target.with_remark(self.name, "plan", "keep", self.settings.word)

plugin = PolicyPlugin("NAME", Settings, One)
"""
SAMPLE = next(samples())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "policies"
    made.mkdir(mode=0o755)
    return made


def write(path: Path, text: str = GOOD, name: str = "nights") -> Path:
    path.parent.mkdir(mode=0o755, exist_ok=True)
    path.write_text(text.replace("NAME", name))
    path.chmod(0o644)
    return path


def chain(folder: Path, *names: str, more: str = "", timeout_s: float = 5.0) -> list[Policy]:
    """The policies that a daemon would have."""
    settings = parse_settings(f"cluster = 'x'\n[policies]\nchain = {list(names)}\n{more}", "burstd.toml")
    plugins = PluginRegistry.installed(folder, timeout_s)
    return [made.policy for made in make_policies(settings, resolve_plugins(settings, plugins), plugins)]


def first_remark_reason(policy: Policy) -> str:
    found: Target = policy.evaluate(SAMPLE.snapshot, SAMPLE.target)
    return found.remarks[-1].reason


def refused(folder: Path, *names: str, more: str = "", timeout_s: float = 5.0) -> str:
    with pytest.raises(SettingsError) as raised:
        chain(folder, *names, more=more, timeout_s=timeout_s)
    return str(raised.value)


def test_a_file_is_a_policy_with_settings_of_its_own(folder: Path) -> None:
    write(folder / "nights.py")
    [nights, idle] = chain(folder, "nights", "idle", more="[policies.nights]\nword = 'day'")
    assert (nights.name, idle.name, first_remark_reason(nights)) == ("nights", "idle", "day")
    assert "line 5: policies.nights.wrod: there is no such key" in refused(
        folder, "nights", more="[policies.nights]\nwrod = 'day'"
    )


def test_without_a_folder_there_are_the_packages_alone(tmp_path: Path) -> None:
    assert [policy.name for policy in chain(tmp_path / "none", "idle")] == ["idle"]
    plugins = PluginRegistry.installed(tmp_path / "none")
    assert (plugins.faults(), "idle" in plugins.names("policies")) == ([], True)


def test_a_package_may_import_from_itself(folder: Path) -> None:
    write(folder / "nights" / "__init__.py", "from .inner.one import plugin\n")
    write(folder / "nights" / "inner" / "__init__.py", "")
    write(folder / "nights" / "inner" / "one.py", GOOD + "from ..words import WORD\nSettings.word = WORD\n")
    write(folder / "nights" / "words.py", "WORD = 'x'\n")
    write(folder / "_helpers.py", "raise SystemExit\n")
    assert first_remark_reason(chain(folder, "nights")[0]) == "night"
    (folder / "nights" / "words.py").unlink()
    assert f"{folder}/nights/inner/one.py:17: ModuleNotFoundError" in refused(folder, "nights")


def test_each_time_it_is_read_afresh_and_nothing_is_written(folder: Path) -> None:
    file = write(folder / "nights.py")
    [old] = chain(folder, "nights")
    stamp = file.stat()
    write(file, GOOD.replace("night", "dawn!"))
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    [new] = chain(folder, "nights")
    assert (first_remark_reason(old), first_remark_reason(new)) == ("night", "dawn!")
    assert [path.name for path in folder.iterdir()] == ["nights.py"]


@pytest.mark.slow
def test_modules_go_with_the_plug_ins_that_they_were_read_for(folder: Path) -> None:
    def there() -> set[str]:
        gc.collect()
        return {name for name in sys.modules if name.startswith("_burstd_policies")}

    before, finders = there(), len(sys.meta_path)
    write(folder / "nights.py")
    plugins = PluginRegistry.installed(folder)
    assert plugins.names("policies")
    assert len(there() - before) == 2
    del plugins
    assert (there() - before, len(sys.meta_path)) == (set(), finders)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n\nx = foo\n", "nights.py:3: NameError: name 'foo' is not defined"),
        ("x = 1\nif x\n", "nights.py:2: SyntaxError: expected ':'"),
        ("x = 1\nraise SystemExit(3)\n", "nights.py:2: SystemExit: 3"),
        ("x = 1\nraise KeyboardInterrupt\n", "nights.py:2: KeyboardInterrupt"),
        ("def f():\n    f()\nf()\n", "nights.py:2: RecursionError: maximum recursion depth exceeded"),
        ("import no_such_thing\n", "nights.py:1: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("while 1:\n    pass\n", "it took longer than 0.2 s and was interrupted"),
        ("import time\ntime.sleep(99)\n", "nights.py:2: it took longer than 0.2 s and was interrupted"),
        ("x = 1\n", "nights.py: it has no 'plugin'; it must end with: plugin = PolicyPlugin("),
        ("plugin = 3\n", "nights.py: the plug-in's name None cannot be used"),
        (GOOD.replace("NAME", "chain"), "the plug-in's name 'chain' cannot be used"),
        (GOOD.replace("One)", "3)"), "the policy cannot be made: TypeError: 'int' object is not callable"),
        (GOOD.replace("One)", "dict)"), "the policy cannot be made: "),
        (GOOD.replace('str = "NAME"', 'str = "n"'), "the policy cannot be made: its 'name' must be 'nights'"),
        (GOOD.replace("(self, ", "er(self, "), "a One came of it, which has no method evaluate()"),
        (GOOD.replace("Settings, One)", "dict, One)"), "settings that are no pydantic model"),
        (
            GOOD + "class X:\n    def __str__(self): 1/0\nraise ValueError(X())\n",
            ":19: ValueError: an error that cannot",
        ),
        (GOOD.replace("One)", "lambda _: exit(9))"), "nights.py:16: SystemExit: 9"),
        (GOOD.replace("One)", "lambda _: [0 for _ in iter(int, 1)])"), "nights.py:16: it took longer than 0.2 s"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(folder: Path, text: str, says: str) -> None:
    # As in the daemon, where Ctrl-C has a handler of its own: this one is the policy's.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        write(folder / "nights.py", text)
        found = refused(folder, "nights", timeout_s=0.2 if "took longer" in says else 5.0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert says in found
    assert "policies" in found.splitlines()[1]


def test_settings_that_break_are_named(folder: Path) -> None:
    bad = "    @classmethod\n    def model_validate(cls, _): raise SystemExit(4)\n"
    write(folder / "nights.py", GOOD.replace('    word: str = "night"\n', bad))
    assert f"policies.nights: the policy's settings break: {folder}/nights.py:8: SystemExit: 4" in refused(
        folder, "nights"
    )


def test_a_broken_file_that_no_chain_names_is_a_warning(folder: Path) -> None:
    write(folder / "nights.py")
    write(folder / "days.py", "oops\n")
    assert [policy.name for policy in chain(folder, "nights")] == ["nights"]
    fault = f"{folder}/days.py:1: NameError: name 'oops' is not defined"
    assert PluginRegistry.installed(folder).faults() == [fault]
    # Which of them was meant nobody knows.
    assert f"there is no policy 'evenings'; installed: {_known('nights')}; not loaded: {fault}" in refused(
        folder, "evenings"
    )


def _known(*more: str) -> str:
    return ", ".join(sorted([*PluginRegistry.installed().names("policies"), *more]))


def test_one_name_is_one_policy(folder: Path) -> None:
    write(folder / "a.py")
    write(folder / "b.py")
    write(folder / "c.py", name="idle")
    twice = f"more than one policy is called 'nights': {folder}/a.py and {folder}/b.py; rename or remove one"
    assert twice in refused(folder, "nights")
    found = refused(folder, "idle")
    assert "more than one policy is called 'idle': burstd " in found
    assert f" and {folder}/c.py" in found
    # Nobody who is in no chain keeps the others from work.
    assert [policy.name for policy in chain(folder, "limits")] == ["limits"]
    assert twice in PluginRegistry.installed(folder).faults()


@pytest.fixture
def ran(folder: Path) -> Path:
    mark = folder.parent / "ran"
    write(folder / "nights.py", f"open({str(mark)!r}, 'w').close()\n" + GOOD)
    return mark


@pytest.mark.parametrize(
    ("place", "mode", "says"),
    [
        ("nights.py", 0o646, "can be written by others (mode 0646); 'chmod go-w' it"),
        (".", 0o757, "can be written by others (mode 0757)"),
        ("..", 0o707, "can be written by others (mode 0707)"),
    ],
)
def test_what_others_could_have_written_is_not_run(folder: Path, ran: Path, place: str, mode: int, says: str) -> None:
    (folder / place).chmod(mode)
    found = refused(folder, "nights")
    assert f"{folder}/nights.py: it is not loaded: {(folder / place).resolve()} {says}" in found
    assert not ran.exists()


def test_nor_what_a_link_leads_to(folder: Path, ran: Path) -> None:
    loose = folder.parent / "loose"
    loose.mkdir()
    (folder / "nights.py").rename(loose / "nights.py")
    (folder / "nights.py").symlink_to("../loose/nights.py")
    assert [policy.name for policy in chain(folder, "nights")] == ["nights"]
    ran.unlink()
    loose.chmod(0o777)
    assert "can be written by others (mode 0777)" in refused(folder, "nights")
    assert not ran.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_nor_what_is_a_strangers(folder: Path, ran: Path) -> None:
    os.chown(folder / "nights.py", 12345, -1)
    assert "belongs to user id 12345; it must belong to root or to the owner of burstd" in refused(folder, "nights")
    assert not ran.exists()


def test_a_module_of_a_package_is_looked_at_as_well(folder: Path) -> None:
    write(folder / "nights" / "__init__.py", "from .one import plugin\n")
    write(folder / "nights" / "one.py").chmod(0o666)
    assert f"{folder}/nights/one.py can be written by others (mode 0666)" in refused(folder, "nights")


def test_what_changed_since_is_told(folder: Path) -> None:
    first, second = write(folder / "a.py", name="a"), write(folder / "b.py", name="b")
    plugins = PluginRegistry.installed(folder)
    assert plugins.files is not None
    assert plugins.files.changed_paths() == []
    write(first, GOOD + "# more\n", "a")
    second.unlink()
    third = write(folder / "c.py", name="c")
    assert plugins.files.changed_paths() == [first, second, third]
