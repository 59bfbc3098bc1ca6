"""Errors that cross as data, and JSON with what JSON does not know."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from pydantic import ValidationError

from corral import protocol
from corral.bodies import NewTrial
from corral.errors import (
    TRIAL_ERRORS,
    ConfigError,
    ErrorRecord,
    FailureKind,
    InfrastructureError,
    NotFound,
    ProtocolError,
    TaskGraphError,
    TrialError,
)
from corral.protocol import decode, encode, to_error, to_problem
from corral.types import WorkerRef


@pytest.mark.parametrize("kind", TRIAL_ERRORS)
def test_a_trial_error_crosses_whole(kind: FailureKind) -> None:
    error = TRIAL_ERRORS[kind]("it broke", record=ErrorRecord("ValueError", "no", "trace"), exit_status=-11, output="o")
    error.phase, error.worker = "tool x", WorkerRef(3, 10, 11)
    status, body, _ = to_problem(error)
    again = to_error(status, json.loads(encode(body)))
    assert type(again) is type(error)
    assert isinstance(again, TrialError)
    assert (str(again), again.record, again.exit_status) == ("it broke", error.record, -11)
    assert (again.output, again.phase, again.worker) == ("o", "tool x", WorkerRef(3, 10, 11))
    assert status == 409 if kind is FailureKind.SUBMISSION else status >= 500


def test_what_is_not_found_crosses_with_its_hint() -> None:
    error = NotFound("task", "x", ["a", "b"])
    status, body, _ = to_problem(error)
    again = to_error(status, body)
    assert isinstance(again, NotFound)
    assert (status, str(again), again.what, again.name) == (404, str(error), "task", "x")


@pytest.mark.parametrize("error", [ConfigError("bad"), TaskGraphError("a cycle")])
def test_bad_input_is_a_config_error(error: ConfigError) -> None:
    status, body, _ = to_problem(error)
    again = to_error(status, body)
    assert (status, type(again), str(again)) == (422, ConfigError, str(error))


@pytest.mark.parametrize("kind", protocol.REFUSALS.values())
def test_refusals_cross(kind: type[protocol.Refused]) -> None:
    status, body, headers = to_problem(kind("no"))
    assert type(to_error(status, body)) is kind
    assert ("retry-after" in headers) == (status == 503)


def test_a_fault_of_the_server_is_no_fault_of_the_trial() -> None:
    status, body, _ = to_problem(ZeroDivisionError("oops"))
    again = to_error(status, body)
    assert (status, type(again)) == (500, InfrastructureError)
    assert "oops" in str(again)
    assert isinstance(to_error(500, to_problem(ProtocolError("torn"))[1]), ProtocolError)


@pytest.mark.parametrize("body", ["<html>Bad Gateway</html>", None, [], {"kind": 3}, {"kind": "no such kind"}])
def test_an_answer_of_something_else_is_infrastructure(body: object) -> None:
    assert isinstance(to_error(502, body), InfrastructureError)


@pytest.mark.parametrize(
    "given", [{"trial_index": -1}, {"trial_index": 1.5}, {"trial_index": True}, {"tool_jobs_per_trial": 0}, {"sed": 1}]
)
def test_bad_bodies_are_named(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as raised:
        NewTrial.model_validate(given)
    status, body, _ = to_problem(raised.value)
    assert status == 422
    assert next(iter(given)) in body["detail"]


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert NewTrial.model_validate({"trial_index": 3.0}).trial_index == 3


def test_strict_json_has_no_nan_and_ours_has() -> None:
    value = {"a": float("nan"), "b": float("-inf"), "c": "\ud800", "d": 10**400}
    strict = encode(value)
    assert json.loads(strict, parse_constant=pytest.fail) == value | {"a": None, "b": None}
    ours = decode(encode(value, strict=False))
    assert math.isnan(ours["a"])
    assert (ours["b"], ours["c"], ours["d"]) == (float("-inf"), "\ud800", 10**400)


def test_an_array_beside_them_changes_no_numbers() -> None:
    value = {"xs": np.array([1.0, math.nan]), "mean": np.float64(math.inf), "at": np.int64(3)}
    assert json.loads(encode(value), parse_constant=pytest.fail) == {"xs": [1.0, None], "mean": None, "at": 3}
    ours = decode(encode(value, strict=False))
    assert (ours["mean"], ours["at"], ours["xs"][0], math.isnan(ours["xs"][1])) == (math.inf, 3, 1.0, True)
    odd = decode(encode({"x": object, "xs": [math.inf]}, strict=False))
    assert odd == {"x": "<class 'object'>", "xs": [math.inf]}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_no_json_is_bad_input(body: bytes) -> None:
    with pytest.raises(ConfigError, match="no JSON"):
        decode(body)
