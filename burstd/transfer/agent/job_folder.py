"""A job's folder on a node, and the record of what the job has there."""

# ruff: noqa: PTH100, PTH101, PTH102, PTH119, PTH120, PTH123, PTH208

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from burstd.transfer.agent.cache import make_root_directories
from burstd.transfer.agent.user_process import AgentFault, JsonObject, chown_to_user


class JobFolder:
    """A job's folder, and its record beside it, which is root's: only what has one is ever removed."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.record = f"{os.path.dirname(self.path)}/.burst-{os.path.basename(self.path)}.json"

    def ensure_created(self, job: str, uid: int, gid: int) -> None:
        """Makes it, for the user only; may be repeated. Raises AgentFault where something else has its name."""
        make_root_directories(os.path.dirname(self.path), 0o755)
        known = self.read_record()
        if known is None:
            if os.path.lexists(self.path):
                raise AgentFault("agent", f"{self.path} is there already, and burstd has not made it: move it away")
            self.write_record({"job": job, "uid": uid, "entries": []})
        elif (known["job"], known["uid"]) != (job, uid):
            raise AgentFault("agent", f"{self.path} is the folder of job {known['job']} of uid {known['uid']}")
        with suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
            # Volumes of pods pass their group on to everything in them; what a job makes is not to come home so.
            os.chmod(self.path, 0o700)
            chown_to_user(self.path, uid, gid)
        about = os.lstat(self.path)
        if not stat.S_ISDIR(about.st_mode):
            raise AgentFault("agent", f"{self.path} is no directory: move it away")
        if about.st_uid != uid:  # killed between the two calls above
            chown_to_user(self.path, uid, gid)

    def read_record(self) -> JsonObject | None:
        """Its record."""
        try:
            with open(self.record, encoding="utf-8") as file:
                record: JsonObject = json.load(file)
        except FileNotFoundError:
            return None
        return record

    def write_record(self, record: JsonObject) -> None:
        """Records; whole or not at all."""
        with open(f"{self.record}.new", "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.rename(f"{self.record}.new", self.record)  # noqa: PTH104 - as above

    def record_cache_entry(self, entry: str) -> None:
        """Records an entry of the cache, which clearing gives free. Raises AgentFault."""
        record = self.read_record()
        if record is None:
            raise AgentFault("agent", f"{self.record} is gone: somebody cleared the job while its input was placed")
        if entry not in record["entries"]:
            record["entries"].append(entry)
            self.write_record(record)


def job_records(spool: str) -> Iterator[JsonObject]:
    """The records of all jobs that have a folder in this directory."""
    for name in os.listdir(spool):
        if name.startswith(".burst-") and name.endswith(".json"):
            with suppress(FileNotFoundError), open(f"{spool}/{name}", encoding="utf-8") as file:
                yield json.load(file)


def existing_job_folder(request: JsonObject) -> str:
    """The folder of a request's job: of an older name where it was made by that."""
    before = request.get("dir_before", "")
    record = JobFolder(before).read_record() if before else None
    matches = record is not None and (record["job"], record["uid"]) == (request["job"], request["uid"])
    return before if matches else str(request["dir"])
