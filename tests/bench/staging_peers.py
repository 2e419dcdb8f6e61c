"""What burstd's staging is measured against: programs as people call them, and boto3."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.lab import tools
from tests.lab.s3_server import REGION, S3Server
from tests.lab.ssh_store import SshStore

CIPHER = ("-c", "aes128-gcm@openssh.com")


def shell(command: str) -> None:
    """Runs it; all of a pipe must go well."""
    subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True)


def ssh(node: SshStore, command: str) -> str:
    """The command on the node, for a shell here."""
    return f"{shlex.join(node.ssh(*CIPHER))} {shlex.quote(command)}"


def rsync(node: SshStore, source: Path, target: str) -> Callable[[], None]:
    """``rsync -a`` over the same ssh. The program is that of the node, which this machine may lack."""
    root = ensure_rootfs(node.release).path
    libraries = ":".join(str(root / part / "x86_64-linux-gnu") for part in ("lib", "usr/lib"))
    words = [str(root / "lib64/ld-linux-x86-64.so.2"), "--library-path", libraries, str(root / "usr/bin/rsync")]
    *way, who = node.ssh(*CIPHER)
    words += ["-a", "-e", shlex.join(way), f"{source}/", f"{who}:{target}/"]
    return lambda: run(words)


def run(words: Sequence[str], environment: dict[str, str] | None = None) -> None:
    """Runs a program quietly."""
    subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)


class S3Peers:
    """boto3, rclone and s5cmd as they come, for one bucket."""

    def __init__(self, server: S3Server, bucket: str, home: Path) -> None:
        self._bucket = bucket
        self._endpoint = server.endpoint
        path = "/usr/bin:/bin"
        keys = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
        self._environment = {
            "PATH": path, "HOME": str(home), **keys, "AWS_REGION": REGION, "RCLONE_CONFIG_LAB_TYPE": "s3",
            "RCLONE_CONFIG_LAB_PROVIDER": "SeaweedFS", "RCLONE_CONFIG_LAB_ENV_AUTH": "true",
            "RCLONE_CONFIG_LAB_ENDPOINT": server.endpoint, "RCLONE_CONFIG": "/dev/null",
        }  # fmt: skip
        self._rclone, self._s5cmd = str(tools.rclone()), str(tools.s5cmd())
        self._client: Any = server.client()

    def puts(self, source: Path) -> dict[str, Callable[[], None]]:
        """Each sends the file."""
        return {
            "boto3": lambda: self._client.upload_file(str(source), self._bucket, "boto3"),
            "rclone": lambda: self._by_rclone(str(source), f"lab:{self._bucket}/rclone"),
            "s5cmd": lambda: self._by_s5cmd(str(source), f"s3://{self._bucket}/s5cmd"),
        }

    def gets(self, target: Path) -> dict[str, Callable[[], None]]:
        """Each fetches what boto3 has put."""
        return {
            "boto3": lambda: self._client.download_file(self._bucket, "boto3", str(target)),
            "rclone": lambda: self._by_rclone(f"lab:{self._bucket}/boto3", str(target)),
            "s5cmd": lambda: self._by_s5cmd(f"s3://{self._bucket}/boto3", str(target)),
        }

    def _by_rclone(self, source: str, target: str) -> None:
        run([self._rclone, "-q", "copyto", "--s3-no-check-bucket", source, target], self._environment)

    def _by_s5cmd(self, source: str, target: str) -> None:
        run([self._s5cmd, "--endpoint-url", self._endpoint, "cp", source, target], self._environment)
