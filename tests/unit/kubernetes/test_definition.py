"""The definition of `TrainingJob`: current, structural, and never stricter than the models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from tools.kubernetes_manifests import main

from shadowprice.core.specs import JobSpec
from shadowprice.kubernetes import definition
from shadowprice.kubernetes.definition import (
    CEL_RULES,
    EXCLUDED_KEYS,
    IMMUTABLE_KEYS,
    SchemaError,
    build_crd,
    supports_cel_rules,
    to_structural_schema,
)
from shadowprice.service.state.submission import REVISABLE_KEYS
from tests.support.examples import example_count

RECORDED = """
$ref $schema additionalItems additionalProperties allOf anyOf default definitions dependencies
description enum example exclusiveMaximum exclusiveMinimum externalDocs format id items maxItems
maxLength maxProperties maximum minItems minLength minProperties minimum multipleOf not nullable
oneOf pattern patternProperties properties required title type uniqueItems
x-kubernetes-embedded-resource x-kubernetes-int-or-string x-kubernetes-list-map-keys
x-kubernetes-list-type x-kubernetes-map-type x-kubernetes-preserve-unknown-fields
"""
KNOWN = frozenset(RECORDED.split())
"""Properties of JSONSchemaProps, recorded from the API schema of Kubernetes 1.20."""

NEWER = KNOWN | {"x-kubernetes-validations"}
"""The same of Kubernetes 1.25 to 1.36."""

SPEC: Mapping[str, Any] = build_crd(rules=True)["spec"]["versions"][0]["schema"]["openAPIV3Schema"][
    "properties"
]["spec"]


def test_committed_state_is_current() -> None:
    assert main(check=True) == 0, "run python -m tools.kubernetes_manifests"


def schemas(schema: Mapping[str, Any], path: str = "spec") -> Iterator[tuple[str, Any]]:
    yield path, schema
    for name, one in schema.get("properties", {}).items():
        yield from schemas(one, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from schemas(schema[key], f"{path}.{key}")


def test_every_value_has_one_type_as_structural_schemas_need() -> None:
    for path, schema in schemas(SPEC):
        open_ended = {"x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"}
        assert ("type" in schema) != bool(open_ended & schema.keys() and "type" not in schema), path
        assert schema.keys() <= NEWER, path
        assert not {"$ref", "anyOf", "default", "nullable"} & schema.keys(), path
        for rule in schema.get("oneOf", ()):
            forbidden = {"type", "description", "default", "additionalProperties", "nullable"}
            assert not forbidden & rule.keys(), path
            for name, value in rule.get("properties", {}).items():
                assert name in schema["properties"], path
                assert not forbidden & value.keys(), path


def test_every_key_of_a_job_is_there_and_explained() -> None:
    assert SPEC["properties"].keys() == JobSpec.model_fields.keys() - EXCLUDED_KEYS
    paths = {path.removeprefix("spec").removeprefix(".") for path, _ in schemas(SPEC)}
    assert definition.FIELDS.keys() <= paths, "explains what is not there"
    for path, schema in schemas(SPEC):
        words = path.split(".")[1:]
        if len(words) == 1 or (len(words) == 2 and words[0] == "run"):
            assert schema.get("description"), f"{path} is not explained in FIELDS"


def test_rules_are_there_only_where_they_are_known() -> None:
    plain, ruled = (json.dumps(build_crd(rules=rules)) for rules in (False, True))
    assert "x-kubernetes-validations" not in plain
    assert "x-kubernetes-validations" in ruled


@pytest.mark.parametrize(("properties", "known"), [(KNOWN, False), (NEWER, True)])
def test_rules_are_found_by_the_published_schema(properties: frozenset[str], known: bool) -> None:
    name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
    definitions = {name: {"properties": {key: {} for key in properties}}}
    assert supports_cel_rules({"definitions": definitions}) is known
    assert supports_cel_rules({"components": {"schemas": definitions}}) is known
    assert not supports_cel_rules({"definitions": {}})


def test_keys_that_cannot_be_revised_are_those_that_last() -> None:
    left = JobSpec.model_fields.keys() - EXCLUDED_KEYS - set(REVISABLE_KEYS) - {"run", "restart"}
    assert set(IMMUTABLE_KEYS) == left


COUNT = st.integers(1, 6)
OPTIONAL = {
    "steps": COUNT,
    "chunks": COUNT,
    "minibatch_time": st.just("1s"),
    "update_time": st.just("1s"),
    "gradient": st.just("1MB"),
    "internal_bandwidth": st.just("9Gbps"),
    "throughput": st.just({"1": 2.0, "2": 3.0}),
    "workers": st.fixed_dictionaries({}, optional={"min": COUNT, "max": COUNT}),
    "ps": st.just({"cpu": 1}),
}
SPECS = st.fixed_dictionaries(
    {
        "worker": st.sampled_from([{"gpu": 1}, {"gpu": 1, "bandwidth": "1Gbps"}]),
        "utility": st.just({"kind": "constant", "value": 1}),
        "run": st.just({"command": ["true"]}),
    },
    optional=OPTIONAL,
)


Programs = list[tuple[Any, str]]


@pytest.fixture(scope="module")
def rules() -> Programs:
    """The rules, in another implementation of CEL than API servers have."""
    celpy = pytest.importorskip("celpy")
    environment = celpy.Environment()
    return [
        (environment.program(environment.compile(rule["rule"])), rule["message"])
        for rule in CEL_RULES
    ]


def broken(programs: Programs, new: Any, old: Any = None) -> list[str]:
    """Return the messages of the rules that a CEL interpreter finds violated."""
    import celpy

    values = {"self": celpy.json_to_cel(new), "oldSelf": celpy.json_to_cel(old or new)}
    return [message for program, message in programs if not program.evaluate(values)]


@settings(max_examples=example_count(150), deadline=None)
@given(spec=SPECS)
def test_no_rule_refuses_what_the_models_take(rules: Programs, spec: dict[str, Any]) -> None:
    result = broken(rules, spec)
    try:
        JobSpec.model_validate({**spec, "name": "a"})
    except ValidationError:
        return
    assert not result


def test_the_speed_of_a_family_may_be_left_to_the_services_library(rules: Programs) -> None:
    spec = {
        "worker": {"gpu": 1},
        "utility": {"kind": "constant", "value": 1},
        "run": {"command": ["true"]},
        "family": "resnet50",
    }
    assert not broken(rules, spec)
    del spec["family"]
    assert not broken(rules, spec)  # its length is predicted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"throughput": {"1": 2.0}}, "one of minibatch_time"),
        ({"minibatch_time": None, "minibatches": 9}, "how fast it trains is missing"),
        ({"minibatch_time": None, "gradient": "1MB"}, "how fast it trains is missing"),
        ({"throughput": {"1": 2.0}, "family": "resnet50"}, "one of minibatch_time"),
        ({"minibatch_time": None, "throughput": {"1": 2}, "gradient": "1MB"}, "takes the place"),
        ({"internal_bandwidth": "9Gbps"}, "needs worker.bandwidth"),
        ({"workers": {"min": 3, "max": 2}, "chunks": 4}, "workers.min is above"),
        ({"workers": {"min": 5}, "chunks": 4}, "workers.min is above"),
        ({"workers": {"max": 5}, "chunks": 4}, "raise chunks"),
        ({"steps": 9, "minibatches": 3}, "remove those"),
        ({"steps": 9, "workers": {"min": 2}}, "workers.min is above"),
    ],
)
def test_every_rule_refuses_something_that_the_models_refuse(
    rules: Programs, change: dict[str, Any], message: str
) -> None:
    spec = {
        "worker": {"gpu": 1},
        "utility": {"kind": "constant", "value": 1},
        "run": {"command": ["true"]},
        "minibatch_time": "1s",
        **change,
    }
    spec = {key: value for key, value in spec.items() if value is not None}
    assert any(message in one for one in broken(rules, spec))
    with pytest.raises(ValidationError):
        JobSpec.model_validate({**spec, "name": "a"})


@pytest.mark.parametrize("key", IMMUTABLE_KEYS)
def test_lasting_keys_cannot_be_added_changed_or_removed(rules: Programs, key: str) -> None:
    base: dict[str, Any] = {
        "worker": {"gpu": 1},
        "utility": {"kind": "constant", "value": 1},
        "minibatch_time": "1s",
    }
    given_ = {
        "worker": {"gpu": 2},
        "ps": {"cpu": 1},
        "update_time": "1s",
        "gradient": "1MB",
        "internal_bandwidth": "1Gbps",
        "family": "a",
    }[key]
    changed = {**base, key: given_}
    pairs = [(base, changed), (changed, base)]
    programs = [pair for pair in rules if pair[1].startswith(f"{key} cannot")]
    for old, new in pairs:
        assert broken(programs, new, old)
        assert not broken(programs, new, new)


def test_unions_that_structural_schemas_cannot_say_are_refused() -> None:
    schema = {
        "type": "object",
        "properties": {"a": TypeAdapter(int | list[int]).json_schema()},
    }
    with pytest.raises(SchemaError, match="a may be of types"):
        to_structural_schema(schema, {})
