"""The API against its own OpenAPI document, with random valid and invalid requests.

``API_EXAMPLES`` draws more of each (``make test SUITE=fuzz-api``).
"""

import os
import warnings
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from shadowprice.executors.contract import ExecutorOptions
from shadowprice.executors.registry import create_executor
from tests.support.services import RunningService, job, run_service
from tests.support.waiting import WAIT_LIMIT_SECONDS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own dependencies
    import schemathesis
    from schemathesis.specs.openapi import checks

# Archives are sent as they are drawn.
schemathesis.serializer.alias("application/x-tar", "application/octet-stream")

EXAMPLES = int(os.environ.get("API_EXAMPLES", "2"))

NOT_OURS = [
    # A job has rules that the schema can't express (work, speed, resources of servers): 422 states
    # them.
    checks.positive_data_acceptance,
    # An unknown parameter is refused with its name; a schema can't express that for a query.
    checks.unsupported_method,
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory):
    with run_service(tmp_path_factory.mktemp("schema"), policy="fifo") as found:
        found.client.post("/v1/jobs", json=job("known"))
        yield found


def _operations(live: RunningService) -> dict:
    document = live.client.get("/v1/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=live.address)
    operations = (result.ok() for result in schema.get_all_operations())
    # The stream never ends; it has tests of its own.
    return {entry.label: entry for entry in operations if entry.label != "GET /v1/events"}


def _holds(case, token: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = case.call(headers={"Authorization": token}, timeout=WAIT_LIMIT_SECONDS)
        # 500 is documented, for a policy that fails; nothing drawn here may make one fail.
        assert answer.status_code < 500, answer.text
        sent = parse_qs(urlsplit(str(answer.request.url)).query, keep_blank_values=True)
        # A wrong parameter without a value, such as an empty list, isn't part of the request.
        is_lost = bool((case.query or {}).keys() - sent.keys())
        excluded = [*NOT_OURS, *([checks.negative_data_rejection] if is_lost else [])]
        case.validate_response(answer, excluded_checks=excluded)


def _check(live: RunningService, operations: dict, mode) -> None:
    token = live.client.headers["authorization"]
    for label, operation in operations.items():
        requests: list[object] = []

        @seed(20261122)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy(generation_mode=mode))
        def holds(case) -> None:
            requests.append(case)  # noqa: B023  # called within this turn of the loop
            _holds(case, token)

        try:
            holds()
        except Exception as error:
            if type(error).__name__ in {"Unsatisfiable", "SkipTest", "Skipped"}:
                continue  # nothing about this route can be wrong: it takes no parameters
            raise
        assert requests or mode is schemathesis.GenerationMode.NEGATIVE, label
    assert live.client.get("/readyz").status_code == 200
    assert live.client.get("/v1/jobs/known").status_code == 200


MODES = pytest.mark.parametrize(
    "mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value
)


@MODES
def test_every_answer_is_as_documented(live: RunningService, mode) -> None:
    operations = _operations(live)
    assert len(operations) >= 27
    _check(live, operations, mode)


@MODES
def test_every_answer_of_a_service_that_runs_jobs_is_as_documented(
    tmp_path_factory: pytest.TempPathFactory, mode
) -> None:
    """An observing service takes no files."""
    folder = tmp_path_factory.mktemp("runs")
    options = ExecutorOptions(str(folder / "data" / "executor"), settings={"cgroup": "off"})
    with run_service(folder, executor=create_executor("local", options)) as live:
        live.client.post("/v1/jobs", json=job("known", run={"command": ["true"]}))
        operations = _operations(live)
        uploads = {label: operation for label, operation in operations.items() if "/upl" in label}
        assert len(uploads) == 2
        _check(live, uploads, mode)
