"""A notification in the form that each way takes. What users and clouds wrote can form neither headers nor markup."""

from __future__ import annotations

from email.message import EmailMessage
from email.utils import format_datetime
from hashlib import sha256

from burstd.api.answers.base import utc_time
from burstd.domain.cloud.quoting import one_line
from burstd.domain.notification import Notification, NotificationKind

MAX_TEXT_CHARS = 2000


def message_id(notification: Notification) -> str:
    """A short name for the notification that any header, URL or log takes."""
    return sha256(notification.id.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def safe_text(notification: Notification) -> str:
    """Its text as one printable line that every encoding of Unicode takes."""
    return one_line(notification.text, MAX_TEXT_CHARS).encode("utf-8", "replace").decode()


def json_message(notification: Notification, cluster: str) -> dict[str, object]:
    """As a program gets it, and a webhook of the format ``json``."""
    return {
        "id": message_id(notification),
        "cluster": cluster,
        "kind": notification.kind.value,
        "event": notification.event,
        "time": utc_time(notification.time).isoformat(),
        "title": notification.title,
        "text": safe_text(notification),
        "user": notification.user,
        "data": {key: one_line(value, MAX_TEXT_CHARS) for key, value in notification.data.items()},
    }


def slack_message(notification: Notification, cluster: str) -> dict[str, object]:
    """As Slack and Mattermost take it: ``&``, ``<`` and ``>`` escaped, and nobody is called by ``@channel``.

    Source: api.slack.com/reference/surfaces/formatting, "Escaping text".
    """
    text = safe_text(notification)
    for plain, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("@", "@\N{ZERO WIDTH SPACE}")):
        text = text.replace(plain, escaped)
    return {"text": f"burstd on {cluster}: {notification.title}\n{text}"}


def matrix_message(notification: Notification, cluster: str) -> dict[str, object]:
    """The content of an ``m.room.message``: plain text that mentions nobody (Matrix 1.7, "User and room mentions")."""
    body = f"burstd on {cluster}: {notification.title}\n{safe_text(notification)}"
    return {"msgtype": "m.notice", "body": body, "m.mentions": {}}


def mail_message(notification: Notification, cluster: str, sender: str, recipients: tuple[str, ...]) -> EmailMessage:
    """A mail. Its headers hold words of burstd's own, addresses of the settings, and which alarm it is, in one line."""
    mail = EmailMessage()
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    alarm = safe_text(notification).partition(": ")[0] if notification.kind is NotificationKind.ALARM else ""
    mail["Subject"] = f"burstd on {cluster}: {notification.title}" + (f": {one_line(alarm, 100)}" if alarm else "")
    mail["Date"] = format_datetime(utc_time(notification.time))
    # A mail that comes twice has the same.
    mail["Message-ID"] = f"<{message_id(notification)}@{cluster}.burstd>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(f"{safe_text(notification)}\n\n-- \nburstd on {cluster}\n")
    return mail
