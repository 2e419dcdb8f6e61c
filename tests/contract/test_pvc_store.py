"""The store of a claim keeps the stagers' contract on a real node, and its mover comes and goes as it should."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import staging.pvc.stager
from burstd.domain.plugins.stager import Stager, StoreRefused
from burstd.node.agent import AgentError
from burstd.testing.stager_contract import ConnectionContract, StagerContract, empty_store
from burstd.testing.store_world import CLUSTER
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.privsep.client import start_user_worker
from burstd.transfer.trees.upload import StagedFor, TreeUploader
from tests.contract.burst_pod import PodAgent, burst_pod
from tests.contract.pvc_world import ClaimSite, PvcWorld, claim_site
from tests.transfer.ground import USER, give_to_user, user_folder

pytestmark = [pytest.mark.boxes, pytest.mark.clouds, pytest.mark.skipif(os.geteuid() != 0, reason="boxes need root")]


@pytest.fixture(scope="module")
def site() -> Iterator[ClaimSite]:
    with claim_site() as made:
        yield made


class TestPvc(StagerContract, ConnectionContract):
    @pytest.fixture
    def world(self, site: ClaimSite, tmp_path: Path) -> Iterator[PvcWorld]:
        with site.plane.reach():
            yield PvcWorld(site, tmp_path)

    def test_the_mover_has_the_namespaces_user_and_what_it_keeps_is_for_that_one_only(
        self, site: ClaimSite, world: PvcWorld
    ) -> None:
        stager = world.stager(CLUSTER)
        stager.put("in/ab/x", b"x")
        (mover,) = site.movers("claim")
        user = mover["spec"]["containers"][0]["securityContext"]["runAsUser"]
        assert user > 1000
        about = (site.path / CLUSTER / "in/ab/x").stat()
        assert (about.st_uid, oct(about.st_mode)) == (user, "0o100600")
        empty_store(stager)
        stager.close()

    def test_as_root_where_the_cluster_allows_it(self, site: ClaimSite, world: PvcWorld) -> None:
        """With the constraints that come with burstd, in a folder of root's; without them the error names the file."""
        asked = {"name": "as-root", "claim": "roots", "security": "root"}
        refused = world.stager(CLUSTER, **asked)
        with pytest.raises(StoreRefused, match=r"config/openshift/scc\.yaml"):
            refused.put("in/ab/x", b"x")
        site.allow_root()
        stager = world.stager(CLUSTER, **asked)
        site.plane.wait(lambda: _works(stager), "the constraints are in force")
        stager.put("in/ab/x", b"x")
        assert stager.get("in/ab/x") == b"x"
        assert site.node.box.path(f"/srv/roots/{CLUSTER}/in/ab/x").stat().st_uid == 0
        empty_store(stager)
        stager.close()

    def test_it_ends_without_work_and_is_there_again_when_there_is_some(
        self, site: ClaimSite, world: PvcWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that a dead burstd has left too: it costs nothing, and is replaced."""
        monkeypatch.setattr(staging.pvc.stager, "_MOVER_EXIT_S", 0.5)
        stager = world.stager(CLUSTER, "idle", idle_s=1.0)
        stager.put("in/ab/x", b"x")
        (first,) = site.movers("idle")
        site.plane.wait(lambda: not site.movers("idle"), "the mover is gone")
        assert stager.get("in/ab/x") == b"x"
        (second,) = site.movers("idle")
        assert second["metadata"]["uid"] != first["metadata"]["uid"]
        stager.close()
        site.plane.wait(lambda: site.movers("idle")[0]["status"]["phase"] == "Succeeded", "the mover has ended")
        again = world.stager(CLUSTER, "idle", idle_s=1.0)
        empty_store(again)
        again.close()

    def test_an_image_without_that_python(self, world: PvcWorld) -> None:
        stager = world.stager(CLUSTER, "snake", python="python9")
        with pytest.raises(StoreRefused, match=r"has no python9: .* \(python\)"):
            stager.put("in/ab/x", b"x")

    def test_an_image_that_cannot_be_had(self, world: PvcWorld) -> None:
        stager = world.stager(CLUSTER, "none", image="registry.lab.test/hpc/none:1")
        with pytest.raises(StoreRefused, match=r"the image registry\.lab\.test/hpc/none:1 of the mover pod cannot"):
            stager.put("in/ab/x", b"x")


def _works(stager: Stager) -> bool:
    try:
        return stager.free_bytes() is not None
    except StoreRefused:
        return False


@pytest.mark.parametrize("security", ["restricted", "root"])
def test_a_burst_pod_takes_its_input_from_the_claim_and_leaves_its_output_there(
    security: str, site: ClaimSite, tmp_path: Path
) -> None:
    """The pod that the provider makes, entered by its shell; burstd's agent there; all with the rights of its Role."""
    with site.plane.reach(), user_folder() as home:
        if security == "root":
            site.allow_root()
        world = PvcWorld(site, tmp_path)
        stager = world.stager(CLUSTER, f"for-{security}", security=security, claim=f"for-{security}")
        with burst_pod(site, security) as (shell, owner):
            (home / "words").write_bytes(b"one two\n" * 1000)
            (home / "words").chmod(0o640)
            give_to_user(home)
            sender = TreeUploader(ContentIndex(None), stager)
            with start_user_worker(USER, USER) as hand:
                tree = sender.upload(hand, str(home), owner=StagedFor(USER))
            agent = PodAgent(shell, stager)
            row = {"name": "data", "access": "read_only", "single": False, "prefix": tree.prefix, "size": tree.size}
            manifest = [[piece.key, piece.offset, piece.length] for piece in tree.manifest]
            agent.run_operation("place", trees=[{**row, "digest": tree.digest, "manifest": manifest}])
            folder = f"{agent.folder}/7"
            said = shell.run(["stat", "-L", "-c", "%u %a", f"{folder}/in/data/words", f"{folder}/out"]).out
            assert [line.split() for line in said.splitlines()] == [[owner, "440"], [owner, "700"]]

            copy = f"cp {folder}/in/data/words {folder}/out/copy; chmod 600 {folder}/out/copy"
            become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
            assert shell.run([*(become if security == "root" else ()), "sh", "-c", copy]).rc == 0
            (out,) = agent.run_operation("collect", patterns=["."], files=[])["trees"]
            assert (out["entries"], out["size"]) == (2, 8000)
            keys = [o.key for o in stager.objects("out/7/n1/")]
            assert any(stager.get(key) == b"one two\n" * 1000 for key in keys)
            with pytest.raises(AgentError, match="not the store's here"):
                # Another claim, where the pod has this one.
                PodAgent(shell, world.stager(CLUSTER, security=security)).run_operation(
                    "collect", patterns=["."], files=[]
                )
            agent.run_operation("clear")
            assert shell.run(["ls", folder]).rc != 0
        empty_store(stager)
        stager.close()
