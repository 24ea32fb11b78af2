"""`TrainingJob` resources on a real API server: applied, read, edited and deleted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.testbed import Testbed
from tools.testbed.places import TestbedError

from tests.kubernetes.operators import DEPLOY, User, eventually, installed, manifest, operated
from tests.support.services import RunningService


@pytest.fixture(scope="module")
def user(control_plane: Testbed) -> User:
    return installed(control_plane)


@pytest.fixture(scope="module")
def service(user: User, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("service")
    library = folder / "families.yaml"
    library.write_text("families: {net: {throughput: {1: 2.5}}}")
    with operated(user.bed, folder, families=library) as running:
        yield running


def job_of(service: RunningService, user: User, name: str) -> dict[str, Any]:
    response = service.client.get(f"/v1/jobs/{user.status(name)['job']}")
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_the_definition_is_established_and_explains_itself(user: User) -> None:
    description = user.bed.kubectl("explain", "tj.spec.utility.kind")
    assert "from submission to completion" in " ".join(description.split())
    result = json.loads(user.bed.kubectl("get", "crd", "trainingjobs.shadowprice.io", "-o", "json"))
    conditions = {
        condition["type"]: condition["status"] for condition in result["status"]["conditions"]
    }
    assert conditions["Established"] == "True"
    assert "NonStructuralSchema" not in conditions
    published = json.loads(user.bed.kubectl("get", "--raw", "/openapi/v2"))
    from shadowprice.kubernetes.definition import supports_cel_rules

    assert not supports_cel_rules(published)  # this is 1.20


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"utility": {"kind": "sigmoid", "value": 1}}, "spec.utility"),
        ({"utility": {"kind": "constant", "value": 1, "by": "4h"}}, "spec.utility"),
        ({"utility": {"kind": "rising", "value": 1}}, "spec.utility.kind"),
        ({"chunks": 0}, "spec.chunks"),
        ({"run": {"env": {}}}, "command"),
        ({"wrokers": {"max": 2}}, "wrokers"),
    ],
)
def test_an_invalid_job_is_refused_at_once(user: User, change: Any, words: str) -> None:
    document = manifest("wrong", **change)
    with pytest.raises(TestbedError, match=re.escape(words)):
        user.apply(document)
    assert user.resource("wrong") is None


def test_it_runs_finishes_and_is_described(user: User, service: RunningService) -> None:
    user.apply(manifest("short", run={"command": ["sleep", "3"]}))
    user.waits_for("short", "Running")
    line = user.bed.kubectl("get", "tj", "short").splitlines()
    assert re.split(r"\s{2,}", line[0])[:6] == [
        "NAME", "STATE", "WORKERS", "PS", "PRICE", "PROMISED FINISH",
    ]  # fmt: skip
    assert line[1].split()[:3] == ["short", "running", "1"]
    user.waits_for("short", "Finished")
    status = user.status("short")
    conditions = {condition["type"]: condition for condition in status["conditions"]}
    assert {kind for kind, condition in conditions.items() if condition["status"] == "True"} == {
        "Admitted", "Finished",
    }  # fmt: skip
    assert {condition["observedGeneration"] for condition in conditions.values()} == {1}
    assert status["state"] == "finished"
    assert status["completion"].endswith("Z")

    def description() -> str | None:
        text = user.bed.kubectl("describe", "tj", "short")
        return text if "Finished " in text and "earned" in text else None

    described = eventually(description, "the event of the end")
    assert "Normal  Started" in described
    user.delete("short")
    user.gone("short")


def test_deleting_cancels_and_the_name_is_free_again(user: User, service: RunningService) -> None:
    user.apply(manifest("again"))
    user.waits_for("again", "Running")
    first = user.status("again")["job"]
    user.delete("again")
    user.gone("again")
    assert service.client.get(f"/v1/jobs/{first}").json()["state"] == "cancelled"
    user.apply(manifest("again"))
    user.waits_for("again", "Running")
    second = user.status("again")["job"]
    assert second != first
    assert service.client.get(f"/v1/jobs/{second}").json()["state"] == "running"
    user.delete("again")
    user.gone("again")


def test_edits_revise_or_are_refused(user: User, service: RunningService) -> None:
    user.apply(manifest("edited"))
    user.waits_for("edited", "Running")
    user.apply(manifest("edited", utility={"kind": "constant", "value": 7}))
    eventually(
        lambda: job_of(service, user, "edited")["spec"]["utility"]["value"] == 7, "the revision"
    )
    assert user.waits_for("edited", "Edited")["reason"] == "Applied"
    user.apply(manifest("edited", utility={"kind": "constant", "value": 7}, worker={"cpu": 2}))
    refused = user.waits_for("edited", "Edited", "False")
    assert refused["reason"] == "Immutable"
    assert "worker cannot be changed" in refused["message"]
    assert refused["observedGeneration"] == 3
    assert job_of(service, user, "edited")["spec"]["worker"] == {"cpu": 1}
    # Of an edit of both, the allowed part is applied, and the status says so.
    user.apply(manifest("edited", utility={"kind": "constant", "value": 8}, worker={"cpu": 2}))
    eventually(
        lambda: user.condition("edited", "Edited").get("observedGeneration") == 4, "the next edit"
    )
    both = user.condition("edited", "Edited")
    assert (both["status"], both["reason"]) == ("False", "Immutable")
    assert "worker cannot be changed: utility changed" in both["message"]
    assert job_of(service, user, "edited")["spec"]["utility"]["value"] == 8
    user.apply(manifest("edited", utility={"kind": "constant", "value": 7}))
    user.waits_for("edited", "Edited")
    user.delete("edited")
    user.gone("edited")


def test_a_resource_takes_the_curve_of_its_family_from_the_service(
    user: User, service: RunningService
) -> None:
    own = manifest("of-a-family", family="net")
    del own["spec"]["minibatch_time"]
    user.apply(own)
    user.waits_for("of-a-family", "Admitted")
    assert job_of(service, user, "of-a-family")["spec"]["throughput"] == {"1": 2.5}
    own["spec"]["utility"] = {"kind": "constant", "value": 7}
    user.apply(own)
    assert user.waits_for("of-a-family", "Edited")["message"] == "utility changed"
    assert job_of(service, user, "of-a-family")["spec"]["throughput"] == {"1": 2.5}
    user.delete("of-a-family")
    user.gone("of-a-family")


def test_specs_that_the_models_refuse_are_rejected_until_fixed(
    user: User, service: RunningService
) -> None:
    user.apply(manifest("invalid", workers={"min": 3, "max": 2}))
    rejected = user.waits_for("invalid", "Rejected")
    assert rejected["reason"] == "InvalidSpec"
    assert "workers.min 3 is above" in rejected["message"]
    assert service.client.get("/v1/jobs").json()["jobs"] is not None
    user.apply(manifest("invalid", workers={"min": 1, "max": 1}))
    user.waits_for("invalid", "Running")
    user.delete("invalid")
    user.gone("invalid")


def test_a_job_that_never_fits_is_refused_with_the_reason(
    user: User, service: RunningService
) -> None:
    user.apply(manifest("large", worker={"cpu": 64}))
    rejected = user.waits_for("large", "Rejected")
    assert rejected["reason"] == "DoesNotFit"
    assert rejected["message"]

    def description() -> bool:
        return "Warning  Refused" in user.bed.kubectl("describe", "tj", "large")

    eventually(description, "the event of the refusal")
    user.delete("large")
    user.gone("large")


def test_removing_the_finalizer_cancels_too(user: User, service: RunningService) -> None:
    deaf = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]  # it isn't gone at once
    user.apply(manifest("forced", run={"command": deaf, "grace": "20s"}))
    user.waits_for("forced", "Running")
    job = user.status("forced")["job"]
    user.delete("forced")
    patch = json.dumps({"metadata": {"finalizers": None}})
    user.bed.kubectl("patch", "tj", "forced", "--type=merge", "-p", patch)
    eventually(
        lambda: service.client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled", "its end"
    )


def test_a_running_job_costs_few_calls(user: User, service: RunningService) -> None:
    user.apply(manifest("counted", run={"command": ["sleep", "4"]}))
    user.waits_for("counted", "Finished")
    user.delete("counted")
    user.gone("counted")
    lines = user.bed.audit.read_text().splitlines()
    calls: dict[str, int] = {}
    for entry in map(json.loads, lines):
        if entry["stage"] != "ResponseComplete" or "shadowprice" not in entry.get("userAgent", ""):
            continue
        about = entry.get("objectRef", {})
        named = about.get("name", "")
        if named == "counted" or named.startswith("counted."):
            kind = f"{entry['verb']} {about['resource']}/{about.get('subresource', '')}"
            calls[kind] = calls.get(kind, 0) + 1
    assert calls["patch trainingjobs/"] == 2  # the finalizer, added and removed
    slots = 14  # a status a slot at most, while it waits, runs, and ends
    assert calls["patch trainingjobs/status"] <= slots, calls


def plugin(user: User, service: RunningService, *words: str) -> str:
    """Return the response of ``kubectl shadowprice`` from the service here."""
    program = "from shadowprice.cli.plugin import run; run()"
    token = service.service.token_file.read_text().strip()
    done = subprocess.run(
        [
            sys.executable, "-c", program, f"--kubeconfig={user.bed.kubeconfig}",
            "--server", service.address, *words,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "SHADOWPRICE_TOKEN": token, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_plugin_speaks_of_resources(
    user: User, service: RunningService, tmp_path: Path
) -> None:
    user.apply(manifest("asked"))
    user.waits_for("asked", "Running")
    assert "started as generation 1 on machine" in plugin(user, service, "explain", "asked")
    assert "running" in plugin(user, service, "status", "asked")
    path = tmp_path / "quoted.yaml"
    path.write_text(yaml.safe_dump(manifest("quoted")))
    assert "quoted" in plugin(user, service, "quote", str(path))
    assert user.resource("quoted") is None
    assert plugin(user, service, "prices")
    chosen = plugin(user, service, "crd")
    assert "x-kubernetes-validations" not in chosen
    assert yaml.safe_load(chosen) == yaml.safe_load((DEPLOY / "crd.yaml").read_text())
    user.delete("asked")
    user.gone("asked")
