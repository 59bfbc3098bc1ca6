"""What an agent sees of a tool, and what happens to its calls."""

from __future__ import annotations

import copy
import json
import math
import pickle
import threading
from typing import Annotated, Any, Literal, Optional, TypeVar

import cloudpickle
import pytest
from pydantic import BaseModel, Field

from corral.errors import ConfigError
from corral.tools import InvalidArguments, Jobs, MissingHidden, NoSuchJob, Tool, as_tool, job_cancelled, tool

NOTHING: dict[str, Any] = {}


class Peak(BaseModel):
    position: float
    width: float = 1.0


@tool
def at_module_level(x: int) -> int:
    return x + 1


@tool(hidden=("env",))
def dilute(
    volume_ml: Annotated[float, Field(gt=0, description="From the burette.")],
    env: Any,
    solvent: Literal["water", "ethanol"] = "water",
    label: Optional[str] = None,  # noqa: UP045
    peaks: list[Peak] = [],  # noqa: B006
    times: int = Field(2, ge=1),
) -> tuple[Any, ...]:
    """Dilute the sample
    in its flask.

    It is stirred afterwards.

    Args:
        volume_ml: Not shown, the annotation says it.
        env: The secret environment.
        solvent: What to add.
        times: How often.

    Returns:
        What was done.
    """
    return volume_ml, env, solvent, label, peaks, times


def parameters(of: Tool, verbosity: Any = "brief") -> dict[str, Any]:
    found: dict[str, Any] = of.schema(verbosity)["function"]["parameters"]
    return found


def test_types_defaults_choices_and_fields_reach_the_schema() -> None:
    schema = parameters(dilute)
    assert schema["required"] == ["volume_ml"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert properties["volume_ml"] == {
        "type": "number", "exclusiveMinimum": 0, "description": "From the burette.",
    }  # fmt: skip
    assert properties["solvent"]["enum"] == ["water", "ethanol"]
    assert properties["solvent"]["default"] == "water"
    assert properties["solvent"]["description"] == "What to add."
    assert properties["label"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert properties["peaks"]["items"] == {"$ref": "#/$defs/Peak"}
    assert properties["times"] == {"type": "integer", "default": 2, "minimum": 1, "description": "How often."}
    assert schema["$defs"]["Peak"]["required"] == ["position"]


@pytest.mark.parametrize("verbosity", ["minimal", "brief", "full"])
def test_hidden_arguments_are_never_shown(verbosity: Any) -> None:
    text = str(dilute.schema(verbosity))
    assert "'env'" not in text
    assert "secret" not in text


def test_verbosity() -> None:
    assert dilute.description("minimal") == ""
    assert "description" not in str(dilute.schema("minimal"))
    assert dilute.description("brief") == "Dilute the sample in its flask."
    full = dilute.description("full")
    assert "stirred" in full
    assert "What was done." in full
    with pytest.raises(ConfigError, match="verbosity"):
        dilute.schema("loud")  # type: ignore[arg-type]


def test_minimal_keeps_arguments_named_like_schema_words() -> None:
    @tool
    def note(title: str, description: str = "d") -> None: ...

    assert list(parameters(note, "minimal")["properties"]) == ["title", "description"]


@pytest.mark.parametrize(
    "doc",
    [
        "Add.\n\nArgs:\n    a: The first.\n",
        "Add.\n\nParameters\n----------\na : int\n    The first.\n",
        "Add.\n\n:param a: The first.\n",
    ],
    ids=["google", "numpy", "sphinx"],
)
def test_docstring_styles(doc: str) -> None:
    def add(a: int) -> int:
        return a

    add.__doc__ = doc
    made = tool(add)
    assert made.description("brief") == "Add."
    assert parameters(made)["properties"]["a"]["description"] == "The first."


def test_a_caller_may_change_the_schema_it_got() -> None:
    dilute.schema()["function"]["parameters"].clear()
    assert parameters(dilute)["required"] == ["volume_ml"]


def test_what_json_cannot_say_stays_out_of_the_schema_and_holds_all_the_same() -> None:
    @tool
    def integrate(
        t_max: float = math.inf,
        tol: Annotated[float, Field(ge=-math.inf, le=1)] = math.nan,
        default: int = 3,
    ) -> float:
        """Integrate."""
        return t_max

    schema = parameters(integrate)
    json.dumps(schema, allow_nan=False)
    assert "required" not in schema
    assert ["default" in schema["properties"][name] for name in ("t_max", "tol", "default")] == [
        False, False, True,
    ]  # fmt: skip
    assert integrate.validate({})["t_max"] == math.inf


@pytest.mark.parametrize("of", [int, Peak])
def test_a_default_of_none_may_be_given_too(of: Any) -> None:
    def look(n: of = None) -> str:
        """Look."""
        return repr(n)

    look.__annotations__["n"] = of
    given = as_tool(look)
    assert given.validate({"n": None}) == given.validate({}) == {"n": None}
    assert {"type": "null"} in parameters(given)["properties"]["n"]["anyOf"]
    with pytest.raises(InvalidArguments):
        given.validate({"n": "x"})


def test_arguments_are_converted_and_defaults_filled_in() -> None:
    given = dilute.validate({"volume_ml": "2.5", "peaks": [{"position": 3}]})
    assert given["volume_ml"] == 2.5
    assert given["peaks"] == [Peak(position=3)]
    assert dilute.run(given, {"env": "E"}.__getitem__)[1:4] == ("E", "water", None)
    assert given["times"] == 2


def test_a_mutable_default_is_not_shared_by_calls() -> None:
    first = dilute.validate({"volume_ml": 1})["peaks"]
    first.append("mark")
    assert dilute.validate({"volume_ml": 1})["peaks"] == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "argument 'volume_ml' is missing"),
        ({"volume_ml": -1}, "greater than 0 .given -1"),
        ({"volume_ml": 1, "env": 2}, "unknown argument 'env'; it takes volume_ml, solvent"),
        ({"volume_ml": 1, "colour": 2, "size": 3}, "unknown argument 'colour', 'size'"),
        ({"volume_ml": 1, "solvent": "oil"}, "'water' or 'ethanol'"),
        ({"volume_ml": 1, "peaks": [{"width": 1}]}, "argument 'peaks.0.position' is missing"),
        ([1], "must be an object with named values, not list"),
    ],
)
def test_a_bad_call_says_what_is_wrong(arguments: Any, text: str) -> None:
    with pytest.raises(InvalidArguments, match=text):
        dilute.validate(arguments)


def test_any_argument_name_is_possible() -> None:
    @tool
    def odd(_x: int, schema: str, model_config: int, copy: int, /, json: int) -> list[Any]:
        return [_x, schema, model_config, copy, json]

    arguments = {"_x": 1, "schema": "s", "model_config": 2, "copy": 3, "json": 4}
    assert list(parameters(odd)["properties"]) == list(arguments)
    assert odd.run(odd.validate(arguments)) == [1, "s", 2, 3, 4]


def test_a_missing_hidden_argument_names_tool_and_argument() -> None:
    with pytest.raises(MissingHidden, match=r"'dilute' asks for the hidden argument 'env'.*supplies a, b"):
        dilute.prepare({"volume_ml": 1}, NOTHING.__getitem__, ["b", "a"])


def test_a_hidden_argument_may_have_a_default() -> None:
    @tool(hidden=("stock",))
    def use(stock: int = 7) -> int:
        return stock

    assert use.run({}, NOTHING.__getitem__) == 7


def test_types_defined_inside_a_function_are_found() -> None:
    class Local(BaseModel):
        n: int

    @tool
    def take(local: Local, many: list[Local]) -> int:
        return local.n

    assert take.run(take.validate({"local": {"n": 4}, "many": []})) == 4


def test_type_parameters_are_found() -> None:
    """As of ``class Lab[U]: def take[T: int](x: T, y: U)``, which Python 3.11 cannot read."""

    def take(x: Any, xs: Any, y: Any) -> Any:
        return x, xs, y

    declared = {"__annotations__": {"x": "T", "xs": "list[T]", "y": "U"}, "__type_params__": (TypeVar("T", bound=int),)}
    for name, value in declared.items():
        setattr(take, name, value)
    taken = Tool(take, namespace={"__type_params__": (TypeVar("U", bound=str),)})
    kinds = [schema["type"] for schema in taken.schema()["function"]["parameters"]["properties"].values()]
    assert kinds == ["integer", "array", "string"]
    assert taken.validate({"x": 1, "xs": ["2"], "y": "z"}) == {"x": 1, "xs": [2], "y": "z"}


def test_a_type_that_cannot_be_found_is_named() -> None:
    def broken(x: Any) -> None: ...

    broken.__annotations__["x"] = "Nowhere"
    with pytest.raises(ConfigError, match="'broken': the type 'Nowhere' of 'x'"):
        Tool(broken).schema()


def refused_args(*values: int) -> None: ...
def refused_kwargs(**values: int) -> None: ...
async def refused_async() -> None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (refused_args, r"\*values cannot be described"),
        (refused_kwargs, r"\*values cannot be described"),
        (refused_async, "is async.*anyio.run"),
        (lambda: 1, "tool.name="),
        (42, "must be a function"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_at_decoration(function: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        tool(function)


def test_hidden_must_name_an_argument() -> None:
    with pytest.raises(ConfigError, match="hidden names no argument of it: evn"):
        tool(name="t", hidden=("evn",))(lambda env: env)


def test_name_and_description_can_be_given() -> None:
    made = tool(name="weigh-2", description="Weigh it.\n\nTwice.")(lambda: 1)
    assert made.schema()["function"]["name"] == "weigh-2"
    assert made.description() == "Weigh it."
    assert made.description("full") == "Weigh it.\n\nTwice."


def test_a_tool_can_still_be_called_as_a_function() -> None:
    assert at_module_level(2) == 3


def test_a_module_level_tool_is_pickled_by_its_name() -> None:
    at_module_level.schema()
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    assert cloudpickle.loads(cloudpickle.dumps(at_module_level)) is at_module_level
    assert copy.deepcopy(at_module_level) is at_module_level


def test_a_local_tool_survives_cloudpickle_after_use() -> None:
    offset = 10

    @tool
    def shift(x: int) -> int:
        """Shift."""
        return x + offset

    shift.schema()
    again = cloudpickle.loads(cloudpickle.dumps(shift))
    assert again is not shift
    assert again.run(again.validate({"x": "5"})) == 15
    assert again.schema() == shift.schema()


class TestJobs:
    def test_at_most_so_many_run_at_once_and_more_wait(self) -> None:
        jobs = Jobs(2)
        go = threading.Event()
        started = threading.Semaphore(0)

        def work() -> int:
            started.release()
            go.wait()
            return 1

        ids = [jobs.start("t", work) for _ in range(5)]
        assert ids == [f"job-{i}" for i in range(1, 6)]
        started.acquire()
        started.acquire()
        assert jobs.counts() == {"running": 2, "waiting": 3}
        go.set()
        assert [jobs.poll(i, 10)["status"] for i in ids] == ["done"] * 5
        assert jobs.poll(ids[0])["result"] == 1

    def test_a_job_that_raises_has_failed(self) -> None:
        jobs = Jobs(1)
        view = jobs.poll(jobs.start("t", lambda: 1 / 0), 10)
        assert view["status"] == "failed"
        assert view["error"] == "ZeroDivisionError: division by zero"

    def test_cancelling_reaches_the_job_and_drops_its_late_result(self) -> None:
        jobs = Jobs(1)
        running, seen, go = threading.Event(), [], threading.Event()

        def work() -> str:
            running.set()
            go.wait()
            seen.append(job_cancelled())
            return "late"

        job = jobs.start("t", work)
        running.wait()
        assert jobs.cancel(job)["status"] == "cancelled"
        go.set()
        assert jobs.close() == []
        assert seen == [True]
        assert jobs.poll(job) == {"job_id": job, "tool": "t", "status": "cancelled"}

    def test_a_cancelled_job_keeps_its_place_until_it_ends(self) -> None:
        jobs = Jobs(1)
        running, go, second = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            running.set()
            go.wait()

        first = jobs.start("t", work)
        running.wait()
        jobs.cancel(first)
        later = jobs.start("t", second.set)
        assert jobs.poll(later)["status"] == "waiting"
        go.set()
        assert jobs.poll(later, 10)["status"] == "done"

    def test_a_waiting_job_that_is_cancelled_never_runs(self) -> None:
        jobs = Jobs(1)
        go, ran = threading.Event(), threading.Event()
        first = jobs.start("t", go.wait)
        waiting = jobs.start("t", ran.set)
        jobs.cancel(waiting)
        go.set()
        jobs.poll(first, 10)
        jobs.close()
        assert not ran.is_set()

    def test_an_ended_job_cannot_be_cancelled(self) -> None:
        jobs = Jobs(1)
        job = jobs.start("t", lambda: 5)
        jobs.poll(job, 10)
        assert jobs.cancel(job)["result"] == 5

    def test_a_request_to_exit_is_kept(self) -> None:
        jobs = Jobs(1)

        def leave() -> None:
            raise SystemExit(3)

        assert jobs.poll(jobs.start("t", leave), 10)["status"] == "failed"
        assert isinstance(jobs.fatal, SystemExit)

    def test_an_unknown_id_names_the_known_ones(self) -> None:
        jobs = Jobs(1)
        with pytest.raises(NoSuchJob, match="no job 'job-9' yet"):
            jobs.poll("job-9")
        jobs.poll(jobs.start("t", lambda: 1), 10)
        with pytest.raises(NoSuchJob, match="the jobs are job-1"):
            jobs.cancel("job-9")

    def test_closing_names_the_jobs_that_do_not_stop(self) -> None:
        jobs = Jobs(1)
        go = threading.Event()
        job = jobs.start("t", go.wait)
        assert jobs.close(grace=0.01) == [job]
        go.set()
        with pytest.raises(RuntimeError, match="closed"):
            jobs.start("t", go.wait)

    def test_outside_a_job_nothing_is_cancelled(self) -> None:
        assert job_cancelled() is False
