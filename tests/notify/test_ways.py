"""The ways by which messages go: what arrives, what users cannot inject, what is said of faults, and no secret."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from typing import Any

import pytest

from burstd.domain.notification import Notification, NotificationKind
from burstd.notify import ways as ways_module
from burstd.notify.messages import mail_message, message_id, slack_message
from burstd.notify.ways import NotSent, ways, ways_for
from burstd.settings.notify import MailSettings, NotifySettings, WebhookSettings

from .servers import Inbox, closed_port, mail_server, web_server

HOSTILE = "job <!channel> <@U1> @all \r\nBcc: evil@example.org\r\n\r\n.\r\n& \u202e\ud800 \x1b[31m ünï"
ALARM = Notification("alarm/begin/1/x", NotificationKind.ALARM, "begin", 1.79e9, "alarm", HOSTILE)
OWN = replace(ALARM, id="job/1/spot/0", kind=NotificationKind.JOB, user="ada", data={"job": "1"})
TOKEN = "hush-hush"


@pytest.fixture
def mail() -> Iterator[Inbox]:
    with mail_server() as inbox:
        yield inbox


@pytest.fixture
def web() -> Iterator[Inbox]:
    with web_server() as inbox:
        yield inbox


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways_module, "TIMEOUT_S", 0.5)


def hook(folder: Path, port: int, kind: str) -> NotifySettings:
    secret, token = folder / "url", folder / "token"
    secret.write_text(f"http://127.0.0.1:{port}/services/{TOKEN}\n")
    token.write_text(f"{TOKEN}\n")
    made = WebhookSettings.model_validate(
        {"url_file": secret, "format": kind, **({"token_file": token} if kind == "matrix" else {})}
    )
    return NotifySettings(webhooks={"team": made})


def by_mail(port: int, **more: Any) -> NotifySettings:
    return NotifySettings(mail=MailSettings(host="127.0.0.1", port=port, to=("ops@example.org", "root"), **more))


def test_mail_has_our_headers_only(mail: Inbox) -> None:
    settings = by_mail(mail.port, user_domain="example.org", sender="burstd@example.org")
    for message in (ALARM, OWN):
        ways(settings, "ada")["mail"](message)
    (to, first), (user, _) = mail.mails
    assert (to, user) == (["ops@example.org", "root"], ["ada@example.org"])
    assert set(first.keys()) == {
        "From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "Content-Type", "Content-Transfer-Encoding",
        "MIME-Version",
    }  # fmt: skip
    assert first["Subject"] == "burstd on ada: alarm: job <!channel> <@U1> @all Bcc"
    assert mail.mails[1][1]["Subject"] == "burstd on ada: alarm", "users' words stand in no other mail's subject"
    assert first["Message-ID"] == f"<{message_id(ALARM)}@ada.burstd>"
    body = first.get_content()
    assert body.startswith("job <!channel> <@U1> @all Bcc: evil@example.org . &")
    assert body.splitlines()[2:] == ["-- ", "burstd on ada"]


def test_a_long_or_foreign_subject_is_one_header() -> None:
    for text in ("\u202eüñ\r\nX-Evil: 1" * 500, "provider sky\n\nX-Evil\ud800" + "y" * 65536):
        mail = message_from_bytes(
            mail_message(replace(ALARM, text=text), "ada", "b", ("o",)).as_bytes(), policy=default
        )
        assert "X-Evil" not in mail
        assert str(mail["Subject"]).startswith("burstd on ada: alarm: ")
        assert len(str(mail["Subject"])) < 150
        assert mail["Subject"].isprintable()


def test_a_user_with_an_odd_name_gets_no_mail(mail: Inbox) -> None:
    settings = by_mail(mail.port)
    for user in ("a b", "x>\r\nRCPT TO:<y", "-oQ/tmp", "ada@example.org", "a" * 64):
        assert ways_for(replace(OWN, user=user), settings) == ()
    assert ways_for(OWN, settings) == ("mail",)


def test_what_users_wrote_calls_nobody_in_a_chat(web: Inbox, tmp_path: Path) -> None:
    ways(hook(tmp_path, web.port, "slack"), "ada")["webhook:team"](ALARM)
    ((_, path, _, body),) = web.calls
    assert path == f"/services/{TOKEN}"
    text = body["text"]
    assert text.startswith("burstd on ada: alarm\njob &lt;!channel&gt; &lt;@\u200bU1&gt; @\u200ball Bcc:")
    assert not {"<", ">", "\r", "\x1b", "\u202e"} & set(text)
    assert text.count("\n") == 1
    assert slack_message(replace(ALARM, text="x" * 9000), "ada")["text"].__len__() < 2100  # type: ignore[attr-defined]


def test_matrix_gets_a_transaction_that_counts_once(web: Inbox, tmp_path: Path) -> None:
    for _ in range(2):
        ways(hook(tmp_path, web.port, "matrix"), "ada")["webhook:team"](ALARM)
    for method, path, headers, body in web.calls:
        assert (method, path) == ("PUT", f"/services/{TOKEN}/{message_id(ALARM)}")
        assert headers["Authorization"] == f"Bearer {TOKEN}"
        assert (body["msgtype"], body["m.mentions"]) == ("m.notice", {})


def test_json_and_the_program_get_the_same(web: Inbox, tmp_path: Path) -> None:
    ways(hook(tmp_path, web.port, "json"), "ada")["webhook:team"](OWN)
    program, out = tmp_path / "hook", tmp_path / "out"
    program.write_text(f"#!/bin/sh\nenv > {out}.env\ncat > {out}\n")
    program.chmod(0o755)
    os.environ["BURSTD_SECRET"] = TOKEN
    try:
        ways(NotifySettings(program=program), "ada")["program"](OWN)
    finally:
        del os.environ["BURSTD_SECRET"]
    got = json.loads(out.read_text())
    assert got == web.calls[0][3]
    assert (got["kind"], got["user"], got["data"], got["cluster"]) == ("job", "ada", {"job": "1"}, "ada")
    assert TOKEN not in Path(f"{out}.env").read_text()


def test_what_is_a_users_own_goes_to_no_webhook(tmp_path: Path) -> None:
    settings = hook(tmp_path, 1, "slack").model_copy(update={"program": Path("/bin/true")})
    assert ways_for(OWN, settings) == ("program",)
    assert ways_for(ALARM, settings) == ("program", "webhook:team")


@pytest.mark.parametrize(("faults", "says"), [([500], "the webhook answered 500"), ([302], "answered 302"),
                                              ([0], "no answer from the webhook (ReadTimeout)")])  # fmt: skip
def test_faults_of_a_webhook(web: Inbox, tmp_path: Path, faults: list[int], says: str) -> None:
    way = ways(hook(tmp_path, web.port, "slack"), "ada")["webhook:team"]
    web.faults = faults
    with pytest.raises(NotSent) as caught:
        way(ALARM)
    assert says in str(caught.value)
    assert TOKEN not in repr(caught.value)
    web.freed.set()
    way(ALARM)


@pytest.mark.parametrize("url", ["", "ftp://x", "http://[", "http://x y", f"https://{TOKEN}.invalid/", "http://\x00"])
def test_a_url_that_is_none_is_not_shown(tmp_path: Path, url: str) -> None:
    settings = hook(tmp_path, 1, "slack")
    (tmp_path / "url").write_text(url)
    with pytest.raises(NotSent) as caught:
        ways(settings, "ada")["webhook:team"](ALARM)
    assert TOKEN not in str(caught.value)
    (tmp_path / "url").unlink()
    with pytest.raises(NotSent, match="cannot be read"):
        ways(settings, "ada")["webhook:team"](ALARM)


def test_faults_of_a_mail_server(mail: Inbox) -> None:
    for faults, says in (
        ([550], "refuses every recipient (550)"),
        ([0], "127.0.0.1: Connection unexpectedly closed: timed out"),
    ):
        mail.faults = list(faults)
        with pytest.raises(NotSent) as caught:
            ways(by_mail(mail.port), "ada")["mail"](ALARM)
        assert says in str(caught.value)
    with pytest.raises(NotSent, match="Connection refused"):
        ways(by_mail(closed_port()), "ada")["mail"](ALARM)


def test_a_password_goes_through_tls_only(mail: Inbox, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text(TOKEN)
    settings = by_mail(mail.port, user="burstd", password_file=secret, starttls=True)
    with pytest.raises(NotSent) as caught:
        ways(settings, "ada")["mail"](ALARM)
    assert TOKEN not in str(caught.value)
    assert mail.mails == []
    with pytest.raises(ValueError, match="must have starttls"):
        by_mail(mail.port, user="burstd", password_file=secret)


def test_sendmail_gets_recipients_as_words(tmp_path: Path) -> None:
    program, out = tmp_path / "sendmail", tmp_path / "out"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {out}\ncat > {out}.mail\n')
    program.chmod(0o755)
    settings = NotifySettings(mail=MailSettings(sendmail=program, to=("ops@example.org",)))
    ways(settings, "ada")["mail"](ALARM)
    assert out.read_text().splitlines() == ["-i", "-f", "burstd", "--", "ops@example.org"]
    assert Path(f"{out}.mail").read_bytes() == mail_message(ALARM, "ada", "burstd", ("ops@example.org",)).as_bytes()


def test_a_program_that_hangs_fails_or_is_missing(tmp_path: Path) -> None:
    program, pid = tmp_path / "hook", tmp_path / "pid"
    settings = NotifySettings(program=program, program_timeout_s=1)
    run = ways(settings, "ada")["program"]
    with pytest.raises(NotSent, match="No such file"):
        run(ALARM)
    program.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {pid}.new; mv {pid}.new {pid}\nwait\n")
    program.chmod(0o755)
    with pytest.raises(NotSent, match="did not end within 1 s"):
        run(ALARM)
    child = pid.read_text().strip()
    state = subprocess.run(["ps", "-o", "stat=", "-p", child], capture_output=True, text=True, check=False).stdout
    assert state[:1] in ("", "Z")
    program.write_text("#!/bin/sh\nprintf 'no\\nway\\033[1m' >&2\nexit 3\n")
    with pytest.raises(NotSent) as caught:
        run(ALARM)
    assert str(caught.value) == f"{program} ended with status 3: no way [1m"
    program.write_text("#!/bin/sh\nexec 0<&-\nexit 0\n")
    run(replace(ALARM, text="x" * 100_000, data={"more": "y" * 1000}))
    program.write_text("#!/bin/sh\nexit 4\n")
    with pytest.raises(NotSent, match=r"ended with status 4$"):
        run(ALARM)
