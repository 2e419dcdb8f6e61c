"""The FOCUS file keeps the rules of the specification, version 1.2, for columns and values.

With ``BURSTD_FOCUS_VALIDATOR=.../bin/focus-validator`` (2.2.1, which needs Python 3.12 and half a gigabyte) that checks
the file as well.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from burstd.api.answers.base import Money
from burstd.api.answers.charges import ChargedView, ChargesView, ChargeView
from burstd.api.bill_files.focus import focus_rows
from burstd.api.bill_files.table import csv_lines

VALIDATOR = os.environ.get("BURSTD_FOCUS_VALIDATOR", "")
MANDATORY = {
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost",
    "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
    "ServiceCategory", "ServiceName",
}  # fmt: skip
NEVER_NULL = MANDATORY - {"ChargeClass"} | {
    "BillingAccountType", "ChargeFrequency", "ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "ListUnitPrice",
    "PricingCategory", "ResourceId", "ResourceType", "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceId",
}  # fmt: skip
"""Of a charge that is usage and no correction."""
TOGETHER = (("RegionId", "RegionName"), ("SubAccountId", "SubAccountName"), ("SubAccountId", "SubAccountType"),
            ("InvoiceId", "CommitmentDiscountId"), ("CommitmentDiscountId", "CommitmentDiscountStatus"))  # fmt: skip
"""Null together, or not."""
ALLOWED = {
    "ChargeCategory": {"Usage"}, "ChargeClass": {"", "Correction"}, "ChargeFrequency": {"Usage-Based"},
    "ConsumedUnit": {"Seconds", "GB"}, "PricingUnit": {"Hours", "GB"}, "PricingCategory": {"Standard", "Dynamic"},
    "ServiceCategory": {"Compute", "Storage", "Networking"},
    "ServiceSubcategory": {"Virtual Machines", "Block Storage", "Network Connectivity"},
}  # fmt: skip
NUMBER = re.compile(r"-?\d+(\.\d+)?")
MICRO = Decimal("0.000001")
APPLICABLE = (
    "ACCOUNT_NAMING_SUPPORTED,AVAILABILITY_ZONE_SUPPORTED,MULTIPLE_PRICING_CATEGORIES_SUPPORTED,REGION_SUPPORTED,"
    "USAGE_MEASUREMENT_SUPPORTED,UNIT_PRICING_SUPPORTED,SUB_ACCOUNT_SUPPORTED,TAGGING_SUPPORTED,"
    "MULTIPLE_SUB_ACCOUNT_TYPES_SUPPORTED,MULTIPLE_BILLING_ACCOUNT_TYPES_SUPPORTED,NEGOTIATED_PRICING_SUPPORTED,"
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED,RESOURCE_TYPE_ASSIGNMENT_SUPPORTED"
)


def thing(name: str, price: str, *, volume: bool = False, spot: bool = False, zone: str = "z1") -> ChargedView:
    return ChargedView(
        id=f"id-{name}", volume=volume, resource_id="" if name == "gpu2" else f"i-{name}", name=name,
        provider="sky", region="north", zone=zone, sku="" if volume else "g4", spot=spot,
        price=Money(amount=Decimal(price), currency="EUR"),
        egress_price=Money(amount=Decimal("0.09"), currency="EUR"),
    )  # fmt: skip


def charge(of: str, cost: str, machine_s: float, kind: str = "work", cause: str = "", user: str = "ada",
           bytes_out: int = 0) -> ChargeView:  # fmt: skip
    account = "atlas" if user else ""
    return ChargeView(
        of=f"id-{of}", day=date(2026, 12, 31), kind=kind, cause=cause, pool="" if kind == "volume" else "gpu",
        job="17" if user else "", user=user, account=account, partition="gpu",
        cost=Decimal(cost), currency="EUR", machine_s=machine_s, bytes_out=bytes_out,
    )  # fmt: skip


PAGES = [
    ChargesView(
        now=0, since=0, until=0, cluster="site", next="x",
        things=[thing("gpu1", "3.0613"), thing("gpu2", "0.97", spot=True)],
        charges=[
            charge("gpu1", "1.020433", 1200.0), charge("gpu1", "0.000001", 0.001), charge("gpu2", "0.000027", 0.1),
            charge("gpu2", "0.096637", 0, "traffic", bytes_out=2**30),
        ],
    ),
    ChargesView(
        now=0, since=0, until=0, cluster="site", next="",
        things=[thing("free", "0", zone=""), thing("scratch", "0.0001370137", volume=True)],
        charges=[
            charge("free", "0.000000", 7200.5, "idle", "keep_alive", user=""),
            charge("scratch", "0.003288", 86400.0, "volume"),
        ],
    ),
]  # fmt: skip


@pytest.fixture
def rows() -> list[dict[str, str]]:
    return [*csv.DictReader(csv_lines(focus_rows(PAGES)))]


def test_columns(rows: list[dict[str, str]]) -> None:
    assert len(rows) == 6
    names = [*rows[0]]
    assert set(names) > MANDATORY
    own = [name for name in names if name.startswith("x_")]
    assert names == sorted(names, key=lambda name: (name.startswith("x_"), name))
    assert own == [
        "x_Account",
        "x_Claim",
        "x_CorrectedMonth",
        "x_IdleCause",
        "x_Job",
        "x_Kind",
        "x_Partition",
        "x_Pool",
        "x_User",
    ]
    assert [*csv.reader(csv_lines(focus_rows([])))] == [names], "a bill of nothing has its head"


def test_values(rows: list[dict[str, str]]) -> None:
    for row in rows:
        assert not [name for name in NEVER_NULL if not row[name]]
        assert all(bool(row[one]) is bool(row[other]) for one, other in TOGETHER)
        assert all(row[name] in allowed for name, allowed in ALLOWED.items())
        times = {name: row[name] for name in row if name.endswith(("PeriodStart", "PeriodEnd"))}
        assert times == {
            "BillingPeriodStart": "2026-12-01T00:00:00Z", "BillingPeriodEnd": "2027-01-01T00:00:00Z",
            "ChargePeriodStart": "2026-12-31T00:00:00Z", "ChargePeriodEnd": "2027-01-01T00:00:00Z",
        }  # fmt: skip
        numbers = [name for name in row if name.endswith(("Cost", "Quantity", "UnitPrice"))]
        assert all(NUMBER.fullmatch(row[name]) for name in numbers)
        costs = {row[name] for name in ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")}
        assert len(costs) == 1
        for price in ("ListUnitPrice", "ContractedUnitPrice"):
            product = Decimal(row[price]) * Decimal(row["PricingQuantity"])
            assert product.quantize(MICRO) == Decimal(row["BilledCost"])
        assert row["ResourceName"] != row["ResourceId"]
        for name in ("Tags", "SkuPriceDetails"):
            assert not row[name] or all(isinstance(value, str) for value in json.loads(row[name]).values())
    assert [row["ResourceId"] for row in rows] == ["i-gpu1", "i-gpu1", *["id-gpu2"] * 2, "i-free", "i-scratch"]
    assert [row["PricingCategory"] for row in rows] == ["Standard", "Standard", "Dynamic", *["Standard"] * 3]
    assert {(row["ServiceName"], row["ServiceCategory"]) for row in rows} == {
        ("Machines", "Compute"), ("Volumes", "Storage"), ("Traffic", "Networking"),
    }  # fmt: skip
    [traffic] = [row for row in rows if row["ServiceName"] == "Traffic"]
    assert (traffic["ConsumedQuantity"], traffic["PricingUnit"], traffic["ListUnitPrice"], traffic["SkuId"]) == (
        "1.073741824", "GB", "0.09", "sky/north/z1/traffic",
    )  # fmt: skip


@pytest.mark.skipif(not VALIDATOR, reason="BURSTD_FOCUS_VALIDATOR names no focus-validator")
def test_focus_validator(tmp_path: Path) -> None:
    (tmp_path / "bill.csv").write_text("".join(csv_lines(focus_rows(PAGES))), encoding="utf-8")
    [packages] = Path(VALIDATOR).resolve().parents[1].glob("lib/python*/site-packages")
    found = subprocess.run(
        [VALIDATOR, "--data-file", tmp_path / "bill.csv", "--validate-version", "1.2.0.1", "--block-download",
         "--focus-dataset", "CostAndUsage", "--applicability-criteria", APPLICABLE],
        cwd=packages, capture_output=True, text=True, check=True,  # it reads its list of currencies from there
    ).stdout  # fmt: skip
    failed = re.findall(r"^\S+ (\S+): FAIL ", found, re.MULTILINE)
    assert "Total: " in found
    # One of two alternatives: these charges are on no invoice.
    assert failed == ["InvoiceId-C-005-C"], found
