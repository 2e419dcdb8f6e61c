"""The client's side of the mock: its process, its accounts, its fault switch.

with Ec2Mock() as mock:
    account = mock.account()
    mock.faults(account, cap={"c5.large@us-east-1a": 2})
    client = boto3.client("ec2", **mock.client_words(account))
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

_ROOT = Path(__file__).parents[3]
POLICY = _ROOT / "config" / "aws" / "iam-policy.json"
_POLICY_CLUSTER = "mysite"
"""The cluster's name in that file."""
THROTTLED: dict[str, Any] = {"code": "RequestLimitExceeded", "text": "Request limit exceeded.", "status": 503}
DOWN: dict[str, Any] = {
    "code": "Unavailable",
    "text": "The server is overloaded and can't handle the request.",
    "status": 503,
}


@dataclass(frozen=True)
class Account:
    """See ``accounts.Account``: an account that is set up. The keys are its owner's, who may do everything."""

    number: str
    region: str
    access_key: str
    secret_key: str
    vpc: str
    subnets: dict[str, str]
    security_group: str
    image: str
    image_name: str
    image_parameter: str


@dataclass(frozen=True)
class User:
    """See ``accounts.User``: a user of an account for one cluster."""

    access_key: str
    secret_key: str
    role: str
    queue: str


def policy_for(cluster: str, file: Path = POLICY) -> dict[str, Any]:
    """The policy that burstd ships, for a cluster of this name."""
    text = file.read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text.replace(_POLICY_CLUSTER, cluster))
    return found


def volumes_policy_for(cluster: str) -> dict[str, Any]:
    """The same with the policy for volumes, which sites that have them add."""
    policy, volumes = policy_for(cluster), policy_for(cluster, POLICY.with_name("iam-policy-volumes.json"))
    return {**policy, "Statement": [*policy["Statement"], *volumes["Statement"]]}


class Ec2Mock:
    """A server of its own. ``prefix`` goes before its command line (``ip netns exec NAME``), ``words`` after it."""

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, prefix: Sequence[str] = (), words: Sequence[str] = (),
        log: Path | None = None,
    ) -> None:  # fmt: skip
        self._command = [
            *prefix,
            sys.executable,
            "-m",
            "tests.lab.aws.server",
            "--host",
            host,
            "--port",
            str(port),
            *words,
        ]
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._http: httpx.Client | None = None
        self.url = ""
        """Of all services; known once it is started."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when it answers."""
        # It writes little; what a file does not take goes to our own errors.
        log = self._log.open("a", encoding="utf-8") if self._log else None
        self._process = subprocess.Popen(self._command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        if log:
            log.close()
        assert self._process.stdout is not None
        said = self._process.stdout.readline().split()
        if said[:2] != ["listening", "on"]:
            self.stop()
            raise RuntimeError("the mock of EC2 did not start; its errors are above or in its log")
        self.url = f"http://{said[2]}:{said[3]}"

    def stop(self) -> None:
        """Ends the process, by its id, and what stands behind it."""
        if self._http is not None:
            self._http.close()
            self._http = None
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    @property
    def pid(self) -> int:
        """Of the server."""
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        """Processor time that the server has used so far, in seconds. proc_pid_stat(5): fields 14 and 15."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def account(
        self, *, region: str = "us-east-1", boot_s: float = 0.0, stop_s: float = 0.0, gone_s: float = 3600.0
    ) -> Account:
        """A new one. Instances run after ``boot_s``, end after ``stop_s``, and are listed for ``gone_s`` more."""
        return Account(**self._ask("account", region=region, boot_s=boot_s, stop_s=stop_s, gone_s=gone_s))

    def user(self, account: Account, cluster: str, policy: Mapping[str, Any] | None = None) -> User:
        """A user of the account; without a policy it may do everything. See ``policy_for``."""
        return User(**self._ask("user", account=account.number, cluster=cluster, policy=policy))

    def client_words(self, who: Account | User, region: str = "us-east-1") -> dict[str, str]:
        """For ``boto3.client``."""
        return {
            "endpoint_url": self.url, "region_name": region, "aws_access_key_id": who.access_key,
            "aws_secret_access_key": who.secret_key,
        }  # fmt: skip

    def environment(self, who: Account | User) -> dict[str, str]:
        """What boto3's own chain finds in a process. The endpoint is a matter of burstd's settings."""
        return {"AWS_ACCESS_KEY_ID": who.access_key, "AWS_SECRET_ACCESS_KEY": who.secret_key}

    def faults(self, account: Account, **words: Any) -> None:
        """Arms faults; the keys are those of ``faults.Faults``."""
        self._ask("faults", account=account.number, **words)

    def refuse(self, account: Account, action: str, code: str, text: str = "", status: int = 400, **words: Any) -> None:
        """The next call of the action is answered so, and nothing is done. ``times``, ``skip``, ``paged``."""
        one = {"action": action, "code": code, "text": text or code, "status": status, **words}
        self.faults(account, refuse=[one])

    def clear(self, account: Account) -> None:
        """Disarms all."""
        self._ask("clear", account=account.number)

    def calls(self, account: Account) -> Counter[str]:
        """Calls so far, by action."""
        return Counter(self._ask("calls", account=account.number))

    def reserve(self, account: Account, instance_type: str, zone: str, count: int, *, block: bool = False) -> str:
        """A capacity reservation or capacity block; its id."""
        words = {"instance_type": instance_type, "zone": zone, "count": count, "block": block}
        return str(self._ask("reserve", account=account.number, **words))

    def register_image(self, account: Account, image_name: str, created: str) -> str:
        """An AMI of the account's own, whose CreationDate is ``created`` (ISO 8601); its id."""
        return str(self._ask("register_image", account=account.number, image_name=image_name, created=created))

    def interrupt(
        self,
        account: Account,
        ids: Sequence[str],
        *,
        kind: str = "interruption",
        notice_s: float = 0.0,
        queue: bool = True,
    ) -> None:
        """EC2 takes spot instances back. With a notice it is told before, to the machine and to the queues."""
        words = {"ids": list(ids), "kind": kind, "notice_s": notice_s, "queue": queue}
        self._ask("interrupt", account=account.number, **words)

    def send(self, account: Account, body: str) -> None:
        """Any message into the queues of the account."""
        self._ask("send", account=account.number, body=body)

    def user_data(self, account: Account, instance_id: str) -> str:
        """As the instance got it."""
        text = self._ask("user_data", account=account.number, instance_id=instance_id)
        return base64.b64decode(text).decode()

    def halt(self, account: Account, instance_id: str) -> None:
        """The machine switches itself off."""
        self._ask("halt", account=account.number, instance_id=instance_id)

    def _ask(self, name: str, **words: Any) -> Any:
        if self._http is None:
            self._http = httpx.Client(timeout=30.0)
        answer = self._http.post(f"{self.url}/_lab/{name}", json=words)
        if answer.is_error:
            raise ValueError(f"the mock of EC2 refused {name}: {answer.text}")
        return answer.json()
