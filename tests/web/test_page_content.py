"""What pages show, to whom, and what they do not work out."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from threading import Event

import pytest

from burstd.api.answers.plan import BillView
from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.routers.status import get_bill
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.command import WhatIf
from burstd.domain.idle_gpus import IdleJob, IdleNode
from burstd.domain.plan import Plan
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, SharedGpu
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.decide import decide
from burstd.planner.explain.gpu_map import gpu_cells
from burstd.planner.timeouts import Tuning
from burstd.web.minute_cache import MinuteCache
from tests.api.client import ApiTestClient
from tests.api.fake_backend import FakeBackend
from tests.api.world import JOBS, SNAPSHOT, FixedClock, claim

from .site import busy_site
from .test_pages import PAGES

pytestmark = pytest.mark.usefixtures("backend")

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}",
    "x" * 65536,
    "caf\udcff",
    "\u202egnp.exe",
    "a\x00b\x1b[31m",
)
OTHERS = re.compile(r"secret-project|\bgang\b|\b10[2367]\b|four h100|job 103|i-gpu3")
"""What only the owner of jobs 102, 103, 106 and 107, and administrators, see."""
GPUS = (Gres("gpu", "a100", 4),)
SHARED = tuple(SharedGpu("t4", 4, free, whole) for free, whole in ((4, False), (1, False), (0, False), (0, True)))


@pytest.mark.parametrize("path", PAGES)
def test_another_user_sees_nothing_of_others(nobody: ApiTestClient, path: str) -> None:
    answer = nobody.fetch("GET", path)
    assert answer.status == (403 if path == "/policies" else 200)
    # Of the jobs of nodes in common he sees his own.
    assert not OTHERS.search(answer.body.decode()), path


@pytest.mark.parametrize("path", ["/jobs/102", "/jobs/103", "/nodes/nothing", "/clouds/none", "/projects/none"])
def test_what_is_not_his_or_not_there_is_refused(nobody: ApiTestClient, path: str) -> None:
    assert nobody.fetch("GET", path).status == (403 if "jobs" in path else 404)


def test_policies_are_for_administrators(root: ApiTestClient, nobody: ApiTestClient) -> None:
    assert "nights.py:12: NameError" in root.text("/policies")
    assert 'href="/policies"' not in nobody.text("/")


def test_hostile_names_are_text(root: ApiTestClient, backend: FakeBackend) -> None:
    assert isinstance(SNAPSHOT.slurm, SlurmView)
    rows = tuple(
        replace(JOBS[3], id=str(200 + n), array_job_id="", array_tasks="", tasks=1, name=text, account=text, user=text,
                comment=text, reason=text)
        for n, text in enumerate(HOSTILE)
    )  # fmt: skip
    nodes = {name: replace(node, reason=HOSTILE[0], comment=HOSTILE[1]) for name, node in SNAPSHOT.slurm.nodes.items()}
    hostile = replace(SNAPSHOT, slurm=replace(SNAPSHOT.slurm, jobs=(*JOBS, *rows), nodes=nodes))
    backend.loop = (hostile, decide(hostile, (), Tuning()))
    for path in (
        "/queue",
        "/queue?sort=user",
        "/nodes?state=all",
        "/nodes/gpu1",
        "/",
        *(f"/jobs/{r.id}" for r in rows),
    ):
        text = root.text(path)
        assert "<script>alert" not in text
        assert "<img" not in text
        assert len(text) < 100_000
        assert not re.search(r"[\x00\x1b\ud800-\udfff]", text)
    queue = root.text("/queue")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in queue
    assert "{{7*7}}" in queue
    for link in re.findall(r'href="(/queue\?[^"]*)"', queue):
        assert root.fetch("GET", link.replace("&amp;", "&")).status == 200


def test_a_page_that_is_the_same_is_not_sent_again(
    root: ApiTestClient, nobody: ApiTestClient, backend: FakeBackend
) -> None:
    first = root.fetch("GET", "/queue")
    known = {"if-none-match": first.headers["etag"]}
    same = root.fetch("GET", "/queue", headers=known)
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", first.headers["etag"])
    assert root.fetch("GET", "/queue?sort=user", headers=known).status == 200
    assert nobody.fetch("GET", "/queue", headers=known).status == 200
    assert backend.loop is not None
    backend.loop = (replace(backend.loop[0], now=backend.loop[0].now + 0.5), backend.loop[1])
    assert root.fetch("GET", "/queue", headers=known).status == 200


def test_a_decision_goes_before_a_page_for_a_moment(root: ApiTestClient, backend: FakeBackend) -> None:
    class Ending(Event):
        """A decision that ends as soon as somebody waits for it."""

        waits = 0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.waits += 1
            self.set()
            return True

    backend.between_decisions = ending = Ending()
    assert "As of" in root.text("/queue")
    assert ending.waits == 1
    backend.between_decisions = Event()
    assert "As of" in root.text("/queue"), "not for ever"
    backend.between_decisions = ending


def test_what_is_the_same_for_all_is_worked_out_once_a_loop(backend: FakeBackend) -> None:
    made: list[object] = []

    def make(_: Backend, loop: tuple[Snapshot, Plan]) -> int:
        made.append(loop)
        return len(made)

    first = backend.loop or pytest.fail("no loop")
    second = (replace(first[0], now=first[0].now + 1), first[1])
    assert [backend.once_per_loop(loop, make) for loop in (first, first, second, second)] == [1, 1, 2, 2]
    assert made == [first, second]


def test_a_short_answer_does_not_wait_for_a_long_one(backend: FakeBackend) -> None:
    loop = SNAPSHOT, Plan()

    def short(*_: object) -> str:
        return "short"

    def long(*_: object) -> str:
        with ThreadPoolExecutor() as another:
            return f"long after {another.submit(backend.once_per_loop, loop, short).result(60)}"

    assert backend.once_per_loop(loop, long) == "long after short"


def test_the_bill_of_now_is_made_once_a_minute_for_each_caller(backend: FakeBackend) -> None:
    bills, clock = MinuteCache[BillView](), FixedClock()
    backend.clock = clock
    root, nobody = Caller("root", admin=True), Caller("nobody", admin=False)

    def bill(caller: Caller) -> BillView:
        return bills.get(caller, backend.now(), lambda: get_bill(caller, backend))

    first = bill(root)
    clock.time += 59
    assert bill(root) is first
    assert bill(nobody) is not first
    clock.time += 2
    again = bill(root)
    assert again.total[0].amount > first.total[0].amount, "machines run"
    backend.clock = FixedClock()


def test_a_pool_that_lacks_what_the_job_asks_for_has_no_offers(root: ApiTestClient) -> None:
    page = root.text("/jobs/104")
    assert "<h2>Offers of pool gpu</h2>" in page
    assert "<h2>Pool cpu</h2>\n<p>It lacks gpu:4.</p>\n</section>" in re.sub(r"\n\s*\n", "\n", page)


def test_pages_queue_nothing_for_the_deciding_thread(root: ApiTestClient, backend: FakeBackend) -> None:
    for path in (*PAGES, "/jobs/103", "/jobs/105"):
        root.text(path)
    assert backend.commands == []
    asked = root.text("/jobs/105?what_if=true")
    assert [type(command) for command in backend.commands] == [WhatIf]
    refreshed = root.text(*re.findall(r'data-hx-get="([^"]*)"', asked))
    assert [type(command) for command in backend.commands] == [WhatIf], "a page that is kept fresh asks once"
    # What was found stays: only the rest of the page is replaced.
    assert "No small change of its options is known" in asked.partition('id="live"')[0]
    assert "No small change" not in refreshed


def test_lists_are_paged_filtered_and_sorted(root: ApiTestClient, backend: FakeBackend) -> None:
    backend.loop = busy_site(40, 250)
    whole = root.text("/queue")
    assert "1 to 100 of 250 jobs" in whole
    assert whole.count('<tr id="job-') == 100
    last = root.text("/queue?page=3")
    assert "201 to 250 of 250 jobs" in last
    assert "201 to 250 of 250 jobs" in root.text("/queue?page=99")
    mine = root.text("/queue?user=user7")
    assert set(re.findall(r">(user\d+)<", mine.partition("<tbody>")[2])) == {"user7"}
    names = re.findall(r'<td data-label="of">(\w+)<', root.text("/queue?sort=user"))
    assert names == sorted(names)
    assert len(names) == 100
    held = root.text("/queue?why=held+by+its+user+(Slurm:+JobHeldUser)")
    assert "1 to 5 of 5 jobs" in held
    assert "20 to" not in root.text("/nodes?pool=a100")
    assert "1 to 1 of 1 node" in root.text("/nodes?name=site-3")
    assert "a node of the site" in root.text("/nodes/site-3")


@pytest.mark.parametrize("bad", ["/queue?page=0", "/queue?sort=no", "/costs?since=yesterday", "/costs?group=x"])
def test_what_makes_no_sense_is_refused(root: ApiTestClient, bad: str) -> None:
    answer = root.fetch("GET", bad)
    assert (answer.status, "<h1>Not understood</h1>" in answer.body.decode()) == (422, True)


@pytest.mark.parametrize(
    ("node", "state", "marks"),
    [
        (Node("a", "MIXED", gres_used=(Gres("gpu", "a100", 1),)), S.IN_SERVICE, "●○○○"),
        (Node("a", "MIXED", gres_used=(Gres("gpu", "", 3),)), S.IN_SERVICE, "●●●○"),
        (Node("a", "MIXED", frozenset({"DRAIN"}), gres_used=(Gres("gpu", "", 1),)), S.IN_SERVICE, "●✕✕✕"),
        (Node("a", "DOWN"), S.IN_SERVICE, "✕✕✕✕"),
        (Node("a", "IDLE", frozenset({"NOT_RESPONDING"})), S.IN_SERVICE, "✕✕✕✕"),
        (Node("a", "MIXED", shared_gpus=SHARED), S.IN_SERVICE, "○ 3/4 4/4 ●"),
        (Node("a", "IDLE"), S.BOOTING, "…………"),
        (Node("a", "IDLE"), S.FAILED, "✕✕✕✕"),
        (Node("a", "MIXED", gres_used=(Gres("gpu", "", 1),)), S.DRAINING, "●✕✕✕"),
        (Node("a", "IDLE", frozenset({"POWERED_DOWN"})), None, "····"),
        (Node("a", "IDLE", frozenset({"POWERED_DOWN", "DRAIN"})), None, "✕✕✕✕"),
        (None, S.IN_SERVICE, "✕✕✕✕"),
    ],
)
def test_the_cell_of_a_gpu_says_what_it_does(node: Node | None, state: S | None, marks: str) -> None:
    made: Claim | None = claim("gpu1", state, 5) if state is not None else None
    cells = gpu_cells(GPUS, node, made, slot=True)
    assert "".join(cell.mark for cell in cells) == marks.replace(" ", "")
    assert all(cell.text for cell in cells)


def test_gpus_that_their_job_does_not_use_are_marked(root: ApiTestClient, backend: FakeBackend) -> None:
    assert "GPUs idle" not in root.text("/")
    idle = IdleJob(
        "101", 0, 2, 4, 0.0, 900.0, (("EUR", Decimal("1.53")),), nodes=(IdleNode("gpu1", 2, Decimal("1.53"), "EUR"),),
        text="idle since 13:06 UTC",
    )  # fmt: skip
    assert backend.loop is not None
    snapshot, plan = backend.loop
    assert isinstance(snapshot.slurm, SlurmView)
    nodes = snapshot.slurm.nodes
    used = replace(nodes["gpu1"], gres_used=(Gres("gpu", "v100", 3),))
    snapshot = replace(snapshot, slurm=replace(snapshot.slurm, nodes={**nodes, "gpu1": used}))
    backend.loop = (snapshot, replace(plan, idle_gpus=(idle,)))
    now = " ".join(root.text("/").split())
    assert '<strong>2</strong> GPUs idle <div class="soft">held by <a href="/queue?state=idle">1 job</a>, 1.53' in now
    assert re.findall(r'id="job-(\w+)"', root.text("/queue?state=idle")) == ["101"]
    assert root.text("/gpus").count(f'title="GPU 0: {idle.text}"') == 1
    assert root.get("/v1/nodes/gpu1")["node"]["gpus"] == ["idle", "idle", "used", "free"]


@pytest.mark.parametrize(
    ("node", "marks"),
    [
        (Node("a", "MIXED", gres_used=(Gres("gpu", "a100", 3),)), "◐◐●○"),
        (Node("a", "MIXED", gres_used=(Gres("gpu", "a100", 1),)), "◐○○○"),
        (Node("a", "MIXED", shared_gpus=SHARED), "○3/44/4◐"),
    ],
)
def test_idle_gpus_are_the_first_of_those_in_use(node: Node, marks: str) -> None:
    cells = gpu_cells(GPUS, node, claim("gpu1", S.IN_SERVICE, 5), ("idle since 13:06 UTC",) * 2, slot=True)
    assert "".join(cell.mark for cell in cells) == marks
