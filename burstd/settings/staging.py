"""``[staging]``: the data of jobs. Without this table burstd stages nothing. Sizes are in bytes or have a unit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore import GitIgnorePatternError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from burstd.domain.staging import WorkdirRules
from burstd.settings.fields import RESTART, AbsolutePath, Count, Hours, Money, Name, Seconds, Section, Size, matching
from burstd.transfer.images.reference import is_registry


def _source(text: str) -> str:
    if not text.startswith(("/", "s3://", "swift://")):
        raise ValueError("must be an absolute path on the head, or a URL that begins with s3:// or swift://")
    return text


DataSource = Annotated[str, AfterValidator(_source)]
_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


def _registry(text: str) -> str:
    if not is_registry(text) or text != text.lower():
        raise ValueError("must be a registry, HOST or HOST:PORT in small letters, such as docker.io or ghcr.io")
    return text


Registry = Annotated[str, AfterValidator(_registry)]
DatasetName = Annotated[str, matching(_WORD, "the name must be 1 to 64 letters, digits, '.', '-' and '_'")]


class StoreSettings(BaseModel):
    """``[staging.stores.NAME]``: the kind of store, and the settings that this kind has (checked by ``resolve``)."""

    model_config = ConfigDict(extra="allow", frozen=True)
    kind: str

    @property
    def plugin_settings(self) -> dict[str, Any]:
        """The plug-in's own keys."""
        return dict(self.model_extra or {})


class QuotaSettings(Section):
    """``[staging.quota]``: what one user's, and one account's, live data may take up. None: no limit."""

    user: Size | None = None
    project: Size | None = None
    users: dict[str, Size] = Field(default_factory=dict)
    projects: dict[str, Size] = Field(default_factory=dict)

    def user_limit(self, user: str) -> int | None:
        """Bytes that a user may have."""
        return self.users.get(user, self.user)

    def project_limit(self, account: str) -> int | None:
        """Bytes that the jobs of a Slurm account may have."""
        return self.projects.get(account, self.project)


class DatasetSettings(Section):
    """``[staging.datasets.NAME]``: a named input; ``latest`` is the version that a job gets that names none."""

    versions: Annotated[dict[DatasetName, DataSource], Field(min_length=1)]
    latest: str

    @field_validator("latest")
    @classmethod
    def _there(cls, latest: str, info: ValidationInfo) -> str:
        versions = info.data.get("versions")
        if versions is not None and latest not in versions:
            raise ValueError(f"must be one of the versions: {', '.join(sorted(versions))}")
        return latest

    def version_source(self, version: str = "") -> str | None:
        """Where a version lies; empty: the latest. None: there is no such version."""
        return self.versions.get(version or self.latest)


class WorkdirSettings(Section):
    """``[staging.workdir]``: jobs' working directories. In ``partitions`` every batch job's is staged."""

    partitions: tuple[str, ...] = ()
    max_size: Size = 10 << 30
    max_files: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = 100_000
    ignore: tuple[str, ...] = ("slurm-*.out",)

    @field_validator("ignore")
    @classmethod
    def _patterns(cls, ignore: tuple[str, ...]) -> tuple[str, ...]:
        try:
            GitIgnoreSpec.from_lines(ignore)
        except GitIgnorePatternError as error:
            raise ValueError(f"must be lines as in .gitignore: {error}") from None
        return ignore

    def rules(self) -> WorkdirRules:
        """As the rest of burstd has them."""
        return WorkdirRules(self.max_size, self.max_files, self.ignore)


class ImageSettings(Section):
    """``[staging.images]``: images that jobs name as ``docker://``. Without ``registries`` there are none."""

    registries: tuple[Registry, ...] = ()
    dir: AbsolutePath = Path("/var/tmp")  # noqa: S108 - each conversion makes a folder of its own
    max_size: Size = 64 << 30
    conversions: Annotated[int, Field(strict=True, ge=1, le=16)] = 1


class StagingSettings(Section):
    """The whole table."""

    store: str = Field(default="", json_schema_extra=RESTART)
    stores: dict[Name, StoreSettings] = Field(default_factory=dict, json_schema_extra=RESTART)
    job_dir: AbsolutePath = Field(default=Path("/var/spool/burst"), json_schema_extra=RESTART)
    socket: AbsolutePath | None = Field(default=None, json_schema_extra=RESTART)
    worker_socket: AbsolutePath | None = Field(default=None, json_schema_extra=RESTART)
    min_uid: Count = Field(default=1000, json_schema_extra=RESTART)
    transfers: Count = 4
    transfers_per_user: Count = 2
    bandwidth: Size | None = None
    user_bandwidth: Size | None = None
    cache_size: Size | None = None
    lifetime_days: Count = 30
    output_retention_h: Hours = 24.0
    output_retention_cost: Money | None = None
    retries: Count = 8
    check_s: Seconds = 1.0
    scratch_max: Size | None = None
    container_program: Annotated[
        str, matching(r"[A-Za-z0-9_.+/-]+", "must be the name or path of Apptainer on nodes, without blanks")
    ] = "apptainer"
    quota: QuotaSettings = QuotaSettings()
    workdir: WorkdirSettings = WorkdirSettings()
    images: ImageSettings = ImageSettings()
    datasets: dict[DatasetName, DatasetSettings] = Field(default_factory=dict)

    @property
    def enabled(self) -> bool:
        """True where jobs' data is staged: the file has the table."""
        return bool(self.store)
