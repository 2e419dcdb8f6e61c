"""``[notify]``: whom burstd tells of alarms, budgets and users' jobs, and how."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from burstd.settings.faults import SettingsFault
from burstd.settings.fields import SECRET, AbsolutePath, Name, Seconds, Section, matching

_ADDRESS = r"[A-Za-z0-9._%+-]{1,64}(@[A-Za-z0-9.-]{1,253})?"
MailAddress = Annotated[str, matching(_ADDRESS, "must be one mail address, such as 'hpc-team@example.org'")]
Host = Annotated[str, matching(r"(|[A-Za-z0-9.:-]{1,253})", "must be the name or address of a host")]
Domain = Annotated[str, matching(r"(|[A-Za-z0-9.-]{1,253})", "must be a domain, such as 'example.org'")]
JobEvent = Literal["cannot_start", "start", "budget", "output", "output_home", "spot", "idle_gpus"]


class MailSettings(Section):
    """``[notify.mail]``: by SMTP, or through a local program such as /usr/sbin/sendmail."""

    host: Host = ""
    port: Annotated[int, Field(strict=True, ge=1, le=65535)] = 25
    starttls: bool = Field(default=False, strict=True)
    user: str = ""
    password_file: AbsolutePath | None = Field(default=None, json_schema_extra=SECRET)
    sendmail: AbsolutePath | None = None
    sender: MailAddress = "burstd"
    to: Annotated[tuple[MailAddress, ...], Field(max_length=50)] = ()
    """Of what administrators are told."""
    user_domain: Domain = ""
    """Users get mail at NAME@user_domain; empty: at NAME, which the mail server must know."""

    @property
    def enabled(self) -> bool:
        """Whether mail is sent at all."""
        return bool(self.host or self.sendmail)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.host and self.sendmail:
            raise ValueError("must have host or sendmail, not both")
        if self.to and not self.enabled:
            raise ValueError("must have host, or sendmail, to send mail by")
        if bool(self.user) != (self.password_file is not None):
            raise ValueError("must have user and password_file, or neither")
        if self.user and not self.starttls:
            raise ValueError("must have starttls = true where a password is sent")
        return self


class WebhookSettings(Section):
    """``[notify.webhooks.NAME]``. The URL is a secret, and is in a file of its own."""

    url_file: AbsolutePath = Field(json_schema_extra=SECRET)
    format: Literal["slack", "matrix", "json"] = "json"
    token_file: AbsolutePath | None = Field(default=None, json_schema_extra=SECRET)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.token_file is not None) != (self.format == "matrix"):
            raise ValueError("must have token_file where format is 'matrix', and only there")
        return self


class NotifySettings(Section):
    """``[notify]``."""

    alarms: bool = Field(default=True, strict=True)
    budgets: bool = Field(default=True, strict=True)
    jobs: Annotated[tuple[JobEvent, ...], Field(max_length=7)] = ()
    """What users are told of their own jobs."""
    begin_after_s: Seconds = 60.0
    """An alarm is told once it has lasted so long, ..."""
    end_after_s: Seconds = 600.0
    """... and its end once it has been over for so long."""
    program: AbsolutePath | None = None
    program_timeout_s: Annotated[float, Field(ge=1, le=300)] = 30.0
    mail: MailSettings = MailSettings()
    webhooks: Annotated[dict[Name, WebhookSettings], Field(max_length=16)] = Field(default_factory=dict)


def unusable_programs(settings: NotifySettings) -> Iterator[SettingsFault]:
    """Of the programs that get messages, those that cannot be run."""
    for key, program in ((("program",), settings.program), (("mail", "sendmail"), settings.mail.sendmail)):
        if program is not None and (fault := _unusable_because(program)):
            yield SettingsFault(("notify", *key), f"{fault}: no message can be sent by it")


def _unusable_because(program: Path) -> str:
    try:
        is_file = stat.S_ISREG(program.stat().st_mode)
    except OSError as error:
        return f"the program {program} cannot be used ({error.strerror})"
    return "" if is_file and os.access(program, os.X_OK) else f"{program} is no executable file"
