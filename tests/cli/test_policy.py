"""burstctl policy: what people read, and checking policies without a daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from burstd.domain.command import CommandResult, Reload, TryPolicies
from tests.api.client import ME, ApiTestClient
from tests.api.fake_backend import FakeBackend

from .conftest import NOBODY, Run, as_user

LIST = """\
   POLICY  STATE                 TOOK  FROM                            SETTINGS
1  idle    ok                  2.1 ms  burstd 0.1.0                    keep_alive_s = 300.0
2  nights  fails, hard       400.0 ms  /etc/burstd/policies/nights.py  from_h = 22, token = ***
-  limits  not in the chain            burstd 0.1.0
  nights fails (12 s ago): /etc/burstd/policies/nights.py:12: NameError: name 'foo' is not defined
  ! /etc/burstd/policies/days.py:3: SyntaxError: invalid syntax
  not read since it changed: /etc/burstd/policies/nights.py; 'burstctl policy reload' takes it
  ! /usr/lib/x.py has changed since burstd started, and idle goes on as it was
"""
POLICY = """\
from dataclasses import dataclass, replace
from pydantic import BaseModel, ConfigDict
from burstd.domain.plugins.policy import PolicyPlugin, remarks_on_dropped_want

class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    why: str = "it is night"

@dataclass(frozen=True)
class Nights:
    settings: Settings
    name: str = "nights"

    def evaluate(self, snapshot, target):
        remarks = [r for w in target.wants for r in remarks_on_dropped_want(w, self.name, self.settings.why)]
        return replace(target, wants=(), remarks=(*target.remarks, *remarks))

plugin = PolicyPlugin("nights", Settings, Nights)
"""


def test_list(run: Run, control: Path) -> None:
    assert run("policy", "list").out == LIST
    with ApiTestClient(control) as client:
        assert json.loads(run("policy", "list", "--json").out) == client.get("/v1/policies")


def test_test_shows_what_would_be_otherwise(run: Run, backend: FakeBackend) -> None:
    outcome = run("policy", "test")
    assert (outcome.code, backend.commands) == (0, [TryPolicies(f"user:{ME}")])
    assert "-  want  gpu       2  104   nights: it is night" in outcome.out
    assert json.loads(run("policy", "test", "--json").out)["changes"][0]["nodes_before"] == 2


@pytest.mark.parametrize("word", ["test", "reload"])
def test_a_broken_file_is_refused_with_its_line(run: Run, backend: FakeBackend, word: str) -> None:
    backend.answer = lambda _: CommandResult("/etc/burstd/policies/nights.py:12: NameError", done=False)
    outcome = run("policy", word)
    assert (outcome.code, outcome.err) == (1, "burstctl: /etc/burstd/policies/nights.py:12: NameError\n")


def test_reload_is_that_of_the_settings(run: Run, backend: FakeBackend) -> None:
    backend.answer = lambda _: CommandResult("policy nights is read anew: x.py has changed")
    outcome = run("policy", "reload")
    assert (outcome.out, backend.commands) == ("policy nights is read anew: x.py has changed\n", [Reload(f"user:{ME}")])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_users_do_not_see_them(run: Run) -> None:
    with as_user(NOBODY):
        assert run("policy", "list").code == 4


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir(mode=0o755)
    write(tmp_path / "policies" / "nights.py", POLICY)
    text = f"cluster = 'x'\n[policies]\nchain = ['nights', 'idle']\nfolder = '{tmp_path}/policies'\n"
    return write(tmp_path / "burstd.toml", text)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_check_tries_the_chain_and_the_folder(run: Run, site: Path) -> None:
    file = site.parent / "policies" / "nights.py"
    outcome = run("policy", "check", "--config", str(site))
    assert outcome.code == 0
    assert f"ok  nights  1 in the chain  {file}\n" in outcome.out
    assert "All is well: 2 policies keep the contract in 14 situations.\n" in outcome.out
    write(file.with_name("days.py"), POLICY.replace('"nights"', '"days"'))
    write(file.with_name("broken.py"), "oops\n")
    answer = json.loads(run("policy", "check", "--config", str(site), "--json").out)
    assert [(p["name"], p["place"]) for p in answer["policies"]] == [("nights", 1), ("idle", 2), ("days", 0)]
    assert answer["warnings"] == [f"{file.with_name('broken.py')}:1: NameError: name 'oops' is not defined"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("(*target.remarks, *remarks)", "tuple(remarks)", "remarks of others stay as they are, in front (with one job"),
        (", remarks=(*target.remarks, *remarks)", "", "each change comes with a remark (with one job that waits)"),
        ("return replace", "return 1/0 or replace", "nights.py:16: ZeroDivisionError: division by zero (with nothing"),
        ("        return", "        assert not target.wants\n        return", "nights.py:16: AssertionError (with one"),
        ("return replace", "while True: pass\n        return replace", "it took longer than 0.3 s and was interrupted"),
        ("return replace", "snapshot.pools.clear()\n        return replace", "nights.py:16: AttributeError: "),
        ("from dataclasses", "import random\nfrom dataclasses", ""),
        ("self.settings.why", "str(__import__('time').perf_counter_ns())", "no clock, no memory"),
    ],
)
def test_check_names_what_breaks_the_contract(run: Run, site: Path, old: str, new: str, says: str) -> None:
    file = site.parent / "policies" / "nights.py"
    assert old in POLICY
    write(file, POLICY.replace(old, new))
    if "took longer" in says:
        write(site, site.read_text() + "timeout_s = 0.3\n")
    for words in (("policy", "check"), ("policy", "check", str(file))):
        outcome = run(*words, "--config", str(site))
        assert says in outcome.out
        assert outcome.code == (1 if says else 0)


def test_check_says_why_the_daemon_would_not_start(run: Run, site: Path) -> None:
    file = write(site.parent / "policies" / "nights.py", "\nx = (\n")
    outcome = run("policy", "check", "--config", str(site))
    assert outcome.code == 1
    assert f"line 3: policies.chain[0]: the policy cannot be loaded: {file}:2: SyntaxError" in outcome.out
    assert run("config", "check", str(site), "--no-files").code == 1
    write(file, POLICY.replace('why: str = "it is night"', "why: str"))
    answer = json.loads(run("policy", "check", "--config", str(site), "--json").out)
    assert answer["faults"] == [{"key": "policies.nights.why", "line": 2, "text": "must be set"}]


def test_check_of_a_file_that_is_not_installed(run: Run, site: Path, tmp_path: Path) -> None:
    mine = write(tmp_path / "mine.py", POLICY)
    write(site, site.read_text() + "[policies.nights]\nwhy = 'x.'\n")
    outcome = run("policy", "check", str(mine), "--config", str(site))
    # Its settings are those of burstd.toml.
    assert "a reason is a sentence without a full stop" in outcome.out
    assert f"! a policy 'nights' is there already, from {tmp_path}/policies/nights.py" in outcome.out
    assert run("policy", "check", str(mine), "--config", str(tmp_path / "none.toml")).code == 0
    assert run("policy", "check", str(tmp_path / "none.py")).code == 5


@pytest.mark.slow
def test_check_needs_no_test_tools(site: Path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['pytest', 'hypothesis']))\n"
        "sys.argv = ['burstctl', 'policy', 'check', '--config', sys.argv[1]]\n"
        "from burstd.cli.main import main; main()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code, str(site)], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
