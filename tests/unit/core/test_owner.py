"""Owners of jobs: identified by labels that only the service sets."""

from __future__ import annotations

from typing import Any

import pytest

from shadowprice.core.errors import InputError
from shadowprice.core.job_keys import Owner
from shadowprice.inputs.files import resolve_cluster
from shadowprice.service.state.submission import merge_changes, read_submissions
from tests.support.services import CLUSTER, job

OWNER = Owner("vision", "resnet", "6f0c1a2b-3c4d-5e6f-7081-92a3b4c5d6e7")


def read(record: dict[str, Any], **more: bool) -> Any:
    return read_submissions(
        [record], resolve_cluster(dict(CLUSTER)), tenant=None, runs=False, **more
    )


def test_labels_name_the_owner_they_were_made_of() -> None:
    assert Owner.from_labels({"else": "x", **OWNER.labels()}) == OWNER
    for left_out in OWNER.labels():
        assert Owner.from_labels({k: v for k, v in OWNER.labels().items() if k != left_out}) is None
    assert OWNER.job == "vision.resnet.6f0c1a2b3c4d"


@pytest.mark.parametrize("label", [*OWNER.labels(), "shadowprice.io/anything"])
def test_no_user_submits_the_labels_of_an_owner(label: str) -> None:
    with pytest.raises(InputError, match="reserved for the service"):
        read(job("a", labels={label: "kube-system"}))
    assert read(job("a", labels={"mine": "x"}))


def test_the_service_itself_does() -> None:
    [one] = read(job("a", labels=OWNER.labels()), from_controller=True)
    assert Owner.from_labels(one.spec.labels) == OWNER


@pytest.mark.parametrize("given", [None, {}, {"mine": "x"}, {**OWNER.labels(), "mine": "x"}])
def test_a_revision_leaves_the_owner_as_it_is(given: Any) -> None:
    revised = merge_changes(job("a", labels={"old": "y", **OWNER.labels()}), {"labels": given})
    assert revised["labels"] == {**(given or {}), **OWNER.labels()}


@pytest.mark.parametrize("before", [{}, OWNER.labels()])
def test_no_revision_makes_another_owner(before: dict[str, str]) -> None:
    forged = Owner("kube-system", "resnet", OWNER.uid).labels()
    with pytest.raises(InputError, match="reserved for the service"):
        merge_changes(job("a", labels=before), {"labels": forged})
