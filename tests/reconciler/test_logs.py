from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from burstd.runtime.logs import redact, set_up
from burstd.runtime.secret_forms import HIDDEN

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def logged(style: str = "text", level: str = "info") -> tuple[io.StringIO, Any]:
    out = io.StringIO()
    set_up(style, level, stream=out, environ={})  # type: ignore[arg-type]
    return out, structlog.get_logger("burstd.test")


def fail(message: str) -> None:
    raise RuntimeError(message)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("password", "hunter2", HIDDEN),
        ("db_password", "hunter2", HIDDEN),
        ("munge_key", b"abc", HIDDEN),
        ("client_secret", "x", HIDDEN),
        ("Authorization", "Bearer abcdefghijk", HIDDEN),
        ("auth", {"api_key": "x", "user": "ann"}, {"api_key": HIDDEN, "user": "ann"}),
        ("headers", [{"X-Auth-Token": "x"}], [{"X-Auth-Token": HIDDEN}]),
        ("url", "postgresql://ann:hunter2@h/db", f"postgresql://ann:{HIDDEN}@h/db"),
        ("error", "sent Bearer abcdefghijk to h", f"sent Bearer {HIDDEN} to h"),
        ("error", "login with password=hunter2, then", f"login with password={HIDDEN}, then"),
        ("output", f"key is {KEY} here", f"key is {HIDDEN} here"),
        ("output", KEY[:60], HIDDEN),
        ("output", "MUNGE:AwQFAAD+/=: rest", f"{HIDDEN} rest"),
        ("content", b"abc", "<3 bytes>"),
        ("private_address", "10.0.0.1", "10.0.0.1"),
        ("keys", 3, 3),
        ("password", "", ""),
        ("path", Path("/etc/burstd/munge.key"), "/etc/burstd/munge.key"),
        ("url", "https://h:8080/a@b", "https://h:8080/a@b"),
    ],
)
def test_secrets_are_masked_and_the_rest_is_not(name: str, value: object, shown: object) -> None:
    assert redact(None, "info", {name: value}) == {name: shown}


@given(st.text(min_size=8, alphabet=st.characters(categories=["L", "N"])), st.integers(0, 3))
def test_a_secret_is_masked_however_deep_it_lies(secret: str, depth: int) -> None:
    value: object = {"token": f"#{secret}#"}
    for _ in range(depth):
        value = [{"inner": value}]
    assert f"#{secret}#" not in str(redact(None, "info", {"value": value}))


@pytest.mark.parametrize("style", ["text", "json"])
def test_an_error_of_a_library_is_logged_with_its_trace_and_without_its_secrets(style: str) -> None:
    out, _ = logged(style)
    try:
        fail("could not reach https://ann:hunter2@cloud/")
    except RuntimeError:
        logging.getLogger("some.library").exception("call of %s failed", "https://ann:hunter2@cloud/")
    text = out.getvalue()
    assert "hunter2" not in text
    assert "test_an_error_of_a_library" in text
    if style == "json":
        record = json.loads(text)
        assert record["event"] == f"call of https://ann:{HIDDEN}@cloud/ failed"
        assert record["level"] == "error"
        assert record["logger"] == "some.library"
    else:
        assert f"error some.library: call of https://ann:{HIDDEN}@cloud/ failed\nTraceback" in text


def test_a_line_for_people() -> None:
    out, log = logged()
    log.info("claim moved", claim="c1", reason="no answer", jobs=["1", "2"])
    stamp, rest = out.getvalue().split(" ", 1)
    assert stamp.endswith("Z")
    assert rest == "info burstd.test: claim moved claim=c1 reason='no answer' jobs=\"['1', '2']\"\n"


def test_what_others_say_cannot_look_like_a_line_of_ours() -> None:
    out, log = logged()
    log.warning("cloud said: no\n<3>error burstd: all is lost\x1b[2J", detail="a\nb")
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()


def test_json_is_one_object_a_line() -> None:
    out, log = logged("json")
    log.info("first", number=3)
    log.info("second", text="a\nb")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["event"], first["number"], second["text"]) == ("first", 3, "a\nb")


def test_the_level_holds_and_chatty_libraries_are_kept_down() -> None:
    out, log = logged(level="debug")
    log.debug("seen")
    logging.getLogger("paramiko.transport").info("starting thread")
    assert "seen" in out.getvalue()
    assert "starting" not in out.getvalue()
    out, log = logged(level="error")
    log.warning("seen")
    assert out.getvalue() == ""


def test_every_line_for_the_journal_has_its_priority(tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        there = os.fstat(stream.fileno())
        set_up(stream=stream, environ={"JOURNAL_STREAM": f"{there.st_dev}:{there.st_ino}"})
        log = structlog.get_logger("burstd.test")
        log.info("fine")
        try:
            fail("bad")
        except RuntimeError:
            log.exception("failed")
        stream.seek(0)
        lines = stream.read().splitlines()
        assert lines[0] == "<6>info burstd.test: fine"
        assert lines[1] == "<3>error burstd.test: failed"
        assert len(lines) > 3
        assert all(line.startswith("<3>") for line in lines[1:])
        set_up(stream=stream, environ={"JOURNAL_STREAM": "1:1"})
        structlog.get_logger("burstd.test").info("not to the journal")
        stream.seek(0)
        assert not stream.read().splitlines()[-1].startswith("<")
