"""Reads ``scontrol show licenses``."""

from __future__ import annotations

from burstd.slurm.commands.parsing import parse_count, parse_fields, split_records

SHOW_LICENSES = ("scontrol", "--oneliner", "show", "licenses")


def parse_licenses(text: str) -> dict[str, int]:
    """By name, how many are free. What is not counted there has no limit."""
    records = [parse_fields(block) for block in split_records(text, "LicenseName")]
    return {fields["LicenseName"]: parse_count(fields["Free"]) for fields in records if fields.get("Free")}
