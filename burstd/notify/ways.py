"""The ways by which notifications are sent: a program, mail, webhooks. Each call blocks; none shows a secret."""

from __future__ import annotations

import json
import os
import re
import signal
import smtplib
import ssl
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import httpx

from burstd.domain.cloud.quoting import one_line
from burstd.domain.errors import BurstdError
from burstd.domain.notification import Notification
from burstd.notify.messages import json_message, mail_message, matrix_message, message_id, slack_message
from burstd.settings.notify import MailSettings, NotifySettings, WebhookSettings

TIMEOUT_S = 20.0
"""For each answer of a server."""
MAX_FAULT_CHARS = 300
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,62}", re.IGNORECASE)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Way = Callable[[Notification], None]
"""Sends one notification. Raises NotSent."""


class NotSent(BurstdError):
    """It could not be sent; the message says why, without any secret."""


def ways(settings: NotifySettings, cluster: str) -> Mapping[str, Way]:
    """The ways that the settings have, by name."""
    found: dict[str, Way] = {}
    if settings.program is not None:
        found["program"] = partial(_run_hook, settings.program, settings.program_timeout_s, cluster)
    if settings.mail.enabled:
        found["mail"] = partial(_send_mail, settings.mail, cluster)
    for name, hook in settings.webhooks.items():
        found[f"webhook:{name}"] = partial(_call_webhook, hook, cluster)
    return found


def ways_for(notification: Notification, settings: NotifySettings) -> tuple[str, ...]:
    """By which ways it goes: what is a user's own goes to no webhook, as others read there."""
    program = ("program",) if settings.program is not None else ()
    mail = settings.mail
    if notification.user:
        return (*program, *(("mail",) if mail.enabled and _USER.fullmatch(notification.user) else ()))
    hooks = (f"webhook:{name}" for name in settings.webhooks)
    return (*program, *(("mail",) if mail.enabled and mail.to else ()), *hooks)


def _run_hook(path: Path, timeout_s: float, cluster: str, notification: Notification) -> None:
    _run_program([str(path)], json.dumps(json_message(notification, cluster)).encode() + b"\n", timeout_s)


def _run_program(command: list[str], given: bytes, timeout_s: float) -> None:
    """Runs a program with its standard input. One that does not end in time is killed, with what it has started."""
    # What it writes on standard error waits in the pipe, which has room for 64 KiB: no disk or memory fills up.
    errors, its_errors = os.pipe()
    try:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=its_errors, cwd="/",
                env={"PATH": _PATH, "LANG": "C.UTF-8"}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise NotSent(f"{command[0]} cannot be run ({error.strerror})") from None
        finally:
            os.close(its_errors)
        try:
            process.communicate(given, timeout_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise NotSent(f"{command[0]} did not end within {timeout_s:g} s") from None
        if process.returncode:
            os.set_blocking(errors, False)
            with suppress(BlockingIOError):
                wrote = os.read(errors, MAX_FAULT_CHARS).decode(errors="replace")
                raise NotSent(f"{command[0]} ended with status {process.returncode}: {one_line(wrote)}".rstrip(": "))
            raise NotSent(f"{command[0]} ended with status {process.returncode}")
    finally:
        os.close(errors)


def _send_mail(settings: MailSettings, cluster: str, notification: Notification) -> None:
    to = settings.to
    if notification.user:
        to = (f"{notification.user}@{settings.user_domain}" if settings.user_domain else notification.user,)
    if not to:
        raise NotSent("no address: [notify.mail] has no 'to'")
    mail = mail_message(notification, cluster, settings.sender, to)
    if settings.sendmail is not None:
        _run_program([str(settings.sendmail), "-i", "-f", settings.sender, "--", *to], mail.as_bytes(), TIMEOUT_S)
        return
    try:
        with smtplib.SMTP(settings.host, settings.port, timeout=TIMEOUT_S) as server:
            if settings.starttls:
                server.starttls(context=ssl.create_default_context())
            if settings.password_file is not None:
                server.login(settings.user, _secret(settings.password_file))
            refused = server.send_message(mail, settings.sender, to)
    except smtplib.SMTPRecipientsRefused as error:
        refused = error.recipients
    except smtplib.SMTPAuthenticationError as error:
        raise NotSent(f"the mail server {settings.host} refuses the password ({error.smtp_code})") from None
    except smtplib.SMTPResponseException as error:
        wrote = one_line(_text(error.smtp_error))
        raise NotSent(f"the mail server {settings.host} answered {error.smtp_code} {wrote[:MAX_FAULT_CHARS]}") from None
    except (OSError, smtplib.SMTPException) as error:
        raise NotSent(f"the mail server {settings.host}: {_reason(error)}") from None
    if refused and len(refused) == len(to):
        code = next(iter(refused.values()))[0]
        raise NotSent(f"the mail server {settings.host} refuses every recipient ({code})")


def _call_webhook(settings: WebhookSettings, cluster: str, notification: Notification) -> None:
    url, headers = _secret(settings.url_file), {"User-Agent": "burstd"}
    if not re.fullmatch(r"https?://[!-~]{1,2000}", url):
        raise NotSent(f"the file {settings.url_file} holds no URL")
    method = "POST"
    if settings.format == "matrix":
        # The server takes a transaction once: a message that is sent again does not show twice.
        method, url = "PUT", f"{url.rstrip('/')}/{quote(message_id(notification))}"
        headers["Authorization"] = f"Bearer {_secret(settings.token_file or Path())}"
        body = matrix_message(notification, cluster)
    else:
        body = (slack_message if settings.format == "slack" else json_message)(notification, cluster)
    try:
        with (
            httpx.Client(timeout=TIMEOUT_S, follow_redirects=False) as client,
            client.stream(method, url, json=body, headers=headers) as answer,
        ):
            status = answer.status_code
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        # Its text may hold the URL.
        raise NotSent(f"no answer from the webhook ({type(error).__name__})") from None
    if not 200 <= status < 300:
        raise NotSent(f"the webhook answered {status}")


def _text(answer: bytes | str) -> str:
    return answer if isinstance(answer, str) else answer.decode(errors="replace")


def _secret(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise NotSent(f"the file {path} cannot be read ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or ("no answer in time" if isinstance(error, TimeoutError) else "")
    if isinstance(error, smtplib.SMTPException):
        text = str(error)
    return one_line(str(text or type(error).__name__))[:MAX_FAULT_CHARS]
