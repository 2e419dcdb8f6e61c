"""burstctl bill reconcile: exports of each format, as providers write them, and files that are none."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.cli.provider_exports import MAX_LINE, ExportError, read_export
from burstd.domain.billing.costs import month_start
from tests.api.fake_backend import serving_api
from tests.api.shared_node import shared_node_record
from tests.security.fuzz import fuzzed

from .conftest import NOBODY, Outcome, Run, as_user

FOCUS = (
    "BilledCost,BillingCurrency,ChargeCategory,ChargePeriodStart,ConsumedQuantity,ConsumedUnit,ResourceId,Tags\n"
    '{cost},{currency},Usage,2026-09-20T23:00:00Z,{hours},Hours,{id},"{{""burstd-cluster"": ""site""}}"\n'
    "1.00,EUR,Usage,2026-09-20T23:00:00Z,5,GB,{id},\n"
    "9.00,EUR,Tax,2026-09-30T00:00:00Z,,,,\n"
    "7.00,EUR,Usage,2026-08-31T23:00:00Z,7,Hours,{id},\n"
)
CUR = (
    "lineItem/ResourceId,lineItem/LineItemType,lineItem/UsageStartDate,lineItem/UsageType,lineItem/UsageAmount,"
    "lineItem/CurrencyCode,lineItem/UnblendedCost,pricing/unit,resourceTags/user:burstd-cluster\n"
    "{id},Usage,2026-09-20T23:00:00Z,EUN1-BoxUsage:m8,{hours},{currency},{cost},Hrs,site\n"
    "{id},Usage,2026-09-20T23:00:00Z,EUN1-DataTransfer-Out-Bytes,3,EUR,1.00,GB,site\n"
    "{id},Usage,2026-09-20T23:00:00Z,EUN1-EBSOptimized:m8,3,EUR,0,Hrs,site\n"
    ",Tax,2026-09-01T00:00:00Z,,1,EUR,9.00,,\n"
    "{id},Usage,2026-10-01T00:00:00Z,EUN1-BoxUsage:m8,7,EUR,7.00,Hrs,site\n"
)
CUR2 = CUR.replace("lineItem/ResourceId", "line_item_resource_id").replace(
    "lineItem/LineItemType", "line_item_line_item_type"
).replace("lineItem/UsageStartDate", "line_item_usage_start_date").replace(
    "lineItem/UsageType", "line_item_usage_type"
).replace("lineItem/UsageAmount", "line_item_usage_amount").replace(
    "lineItem/CurrencyCode", "line_item_currency_code"
).replace("lineItem/UnblendedCost", "line_item_unblended_cost").replace("pricing/unit", "pricing_unit").replace(
    "resourceTags/user:burstd-cluster", "resource_tags_user_burstd_cluster"
)  # fmt: skip
TABLES = (FOCUS, CUR, CUR2)
HOURS = "0.8833333333"
"""3180 s, as burstd has it: 3.18 EUR at 3.60 an hour."""
Reconcile = Callable[..., Outcome]


def nova(ended: str | None = "2026-09-21T00:23:00.000000", instance: str = "i-0af1") -> str:
    server = {"instance_id": instance, "started_at": "2026-09-20T23:30:00.000000", "ended_at": ended, "hours": 1.5}
    return json.dumps({"tenant_usage": {"server_usages": [server], "total_hours": 1.5}})


@pytest.fixture(scope="module")
def shared_node() -> Iterator[Path]:
    with shared_node_record() as record, serving_api(record) as (_, path):
        yield path


@pytest.fixture
def against(run: Run, shared_node: Path, tmp_path: Path) -> Reconcile:
    """Writes an export, and compares it with the bill of a month in which burstd charged 3.18 EUR for one machine."""

    def reconcile(text: str, *words: str) -> Outcome:
        file = tmp_path / "export"
        file.write_bytes(gzip.compress(text.encode()) if "--gz" in words else text.encode())
        more = [word for word in words if word != "--gz"]
        return run("bill", "reconcile", str(file), "--month", "2026-09", *more, socket=shared_node)

    return reconcile


def export(table: str, *, cost: str = "3.18", hours: str = HOURS, name: str = "i-0af1", currency: str = "EUR") -> str:
    return table.format(cost=cost, hours=hours, id=name, currency=currency)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", ["i-0af1", "arn:aws:ec2:eu-north-1:1:instance/i-0af1"])
@pytest.mark.parametrize("packed", [(), ("--gz",)])
def test_what_agrees(against: Reconcile, table: str, name: str, packed: tuple[str, ...]) -> None:
    found = against(export(table, name=name), "--json", *packed)
    answer = json.loads(found.out)
    assert (found.code, answer["differences"], answer["agreed"]) == (0, [], 1)
    assert (answer["here"], answer["there"]) == ({"EUR": "3.180000"}, {"EUR": "3.180000"})
    assert (answer["traffic"], answer["rows_of_other_months"]) == (
        {"EUR": {"here": "0.000000", "there": "1.000000"}},
        1,
    )
    assert answer["apart"] == [{"sort": "Tax", "amount": "9.000000", "currency": "EUR"}]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ({"cost": "3.60", "hours": "1"}, {"time": "0.420000"}),
        ({"cost": "3.00"}, {"price": "-0.180000"}),
        ({"currency": "USD"}, None),
        ({"name": "i-other"}, {"not here": "4.180000", "not there": "-3.180000"}),
    ],
)
def test_what_differs(against: Reconcile, table: str, values: dict[str, str], kinds: dict[str, str] | None) -> None:
    found = against(export(table, **values), "--json")
    if kinds is None:
        assert (found.code, "has a charge in USD before, and here one in EUR" in found.err) == (2, True), found.err
        return
    answer = json.loads(found.out)
    assert {one["kind"]: one["amount"] for one in answer["differences"]} == kinds
    assert found.code == 1
    assert against(export(table, **values), "--tolerance", "100").code == (1 if "name" in values else 0)


def test_burstds_own_file_agrees_with_it(against: Reconcile, run: Run, shared_node: Path) -> None:
    text = run("bill", "--month", "2026-09", "--format", "focus", socket=shared_node).out
    assert against(text).code == 0
    assert "both agree on 1 resource" in against(text).out


@pytest.mark.parametrize(
    ("name", "cost", "says"),
    [
        ("vol-0af2", "3.18", "apart: disks of machines 0.50 EUR"),
        # Of 3.18 EUR a tenth is for the address, which AWS bills apart.
        ("arn:aws:ec2:eu-north-1:1:network-interface/eni-0af3", "2.862",
         "apart: addresses of machines 0.50 EUR, burstd 0.32 EUR"),
    ],
)  # fmt: skip
def test_disks_and_addresses_of_machines_are_no_difference(against: Reconcile, name: str, cost: str, says: str) -> None:
    row = f'0.50,EUR,Usage,2026-09-20T23:00:00Z,{{quantity}},{name},"{{{{""burstd-cluster"": ""site""}}}}"\n'
    for quantity in ("5,GB-Mo", "1,Hours"):
        found = against(export(FOCUS, cost=cost) + row.format(quantity=quantity))
        assert (found.code, says in found.out) == (0, True), found.out
    other = against(export(FOCUS) + row.format(quantity="5,GB-Mo").replace(name, "lb-1"))
    assert (other.code, "not here" in other.out) == (1, True)


def test_openstack(against: Reconcile) -> None:
    assert against(nova()).code == 0
    found = against(nova(ended=None), "--json")
    [one] = json.loads(found.out)["differences"]
    assert (found.code, one["kind"], one["why"]) == (1, "time", "billed for longer")
    found = against(nova(instance="other"))
    assert (found.code, "not ours" in found.out, "not there" in found.out) == (1, True, True)


def test_what_people_read(against: Reconcile) -> None:
    found = against(export(CUR, cost="3.60", hours="1") + "i-9,Usage,2026-09-02T00:00:00Z,BoxUsage,1,EUR,1,Hrs,\n")
    lines = [" ".join(line.split()) for line in found.out.splitlines()]
    assert lines == [
        "2026-09, aws: burstd 3.18 EUR, the provider 3.60 EUR for the same (CUR); both agree on 0 resources",
        "apart: Tax 9.00 EUR",
        "apart: traffic and the like of machines 1.00 EUR, burstd 0.00 EUR",
        "1 row of other months left out",
        "",
        "RESOURCE NAME DIFFERENCE AMOUNT BURSTD PROVIDER",
        "i-9 not ours +1.000000 EUR 1.000000 EUR",
        "i-0af1 cpu1 time +0.420000 EUR 3180 s 3600 s minimum of one hour",
        "1 resource of others: no difference unless --all-ours is said",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "line 1: no column ResourceId (FOCUS), lineItem/ResourceId"),
        ("ResourceId,BilledCost\n", "line 1: FOCUS without column billing_currency, charge_period_start"),
        (export(FOCUS, cost="3,18"), "line 2: 9 columns, and 8 in line 1."),
        (export(FOCUS, cost="x"), "line 2: column billed_cost has 'x', which is no number."),
        (export(FOCUS, cost="nan"), "line 2: column billed_cost has 'nan', which is no number."),
        (export(CUR, hours="1e99"), "line 2: column line_item_usage_amount has '1e99', which is no number."),
        (export(FOCUS, hours="1E-999999"), "line 2: column consumed_quantity has '1E-999999', which is no number."),
        (export(FOCUS) + '"a\n",' * (MAX_LINE // 2), f": a row is longer than {MAX_LINE} characters: is it CSV?"),
        (export(FOCUS).replace("2026-09-20T23", "soon"), "line 2: column charge_period_start has 'soon:00:00Z'"),
        (export(FOCUS) + '"', "line 6: unexpected end of data; is it CSV?"),
        (export(FOCUS) + "x" * (MAX_LINE + 1), f"line 6 is longer than {MAX_LINE} characters"),
        (export(FOCUS).replace("2026-09", "2026-08"), "has no row of this month, and 4 of others: name theirs with"),
        ("PAR1....", "is Parquet; export it as CSV."),
        ('{"Servers": 3}', "has no server_usages: what 'openstack usage' prints has sums of projects only."),
        ('{"tenant_usage": {"server_usages": [{}]}}', "server 1 of server_usages: 'started_at'"),
        ('{"tenant_usages": 5}', "has no server_usages"),
        ("[" * 100_000, "is no JSON"),
        ("", "no column ResourceId"),
    ],
)
def test_files_that_are_none(against: Reconcile, text: str, says: str) -> None:
    found = against(text)
    assert (found.code, says in found.err, found.out) == (2, True, ""), found.err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("--month 2026-13", 2, "--month: '2026-13' is no month; write 2026-10."),
        ("--provider nova", 5, "burstd charged nothing of nova in 2026-09, but of aws."),
        ("--tolerance 101", 2, "less than or equal to 100"),
    ],
)
def test_words_that_are_refused(against: Reconcile, words: str, code: int, says: str) -> None:
    found = against(export(FOCUS), *words.split())
    assert (found.code, says in found.err) == (code, True), found.err


def test_a_file_cut_short_and_one_that_is_not_there(run: Run, shared_node: Path, tmp_path: Path) -> None:
    file = tmp_path / "export.gz"
    file.write_bytes(gzip.compress(export(FOCUS).encode())[:-20])
    for path in (file, tmp_path / "none"):
        found = run("bill", "reconcile", str(path), "--month", "2026-09", socket=shared_node)
        assert (found.code, f"{path} cannot be read:" in found.err) == (2, True), found.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_only_administrators_compare(run: Run, shared_node: Path) -> None:
    with as_user(NOBODY):
        found = run("bill", "reconcile", "export.csv", "--month", "2026-09", socket=shared_node)
    assert (found.code, "This is for administrators" in found.err) == (4, True)


cells = st.one_of(
    st.sampled_from(
        ["Usage", "Tax", "Hours", "GB", "2026-09-20T23:00:00Z", "EUR", "i-1", "1.5", "-1", "1E-999999", ""]
    ),
    st.text(),
)


@fuzzed
@given(st.sampled_from(TABLES), st.lists(st.lists(cells, min_size=7, max_size=9), max_size=4), st.binary(max_size=20))
def test_fuzz_an_export_is_read_or_refused_with_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, table: str, rows: list[list[str]], tail: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / f"export{os.getpid()}"
    text = table.splitlines()[0] + "\n" + "".join(",".join(row) + "\n" for row in rows)
    file.write_bytes(text.encode("utf-8", "surrogatepass") + tail)
    since, until = month_start("2026-09"), month_start("2026-10")
    with suppress(ExportError):
        assert all(use.cost.is_finite() for use in read_export(file, since, until, until).uses.values())
