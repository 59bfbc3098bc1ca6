"""LocalRouter: every method of the protocol, on the shared surface and on single trials."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral import LocalRouter, tool
from corral.errors import ConfigError, CorralError, NotFound, OtherTask, SubmissionError, ToolError
from corral.routers import AsyncLocalRouter
from tests.support.benches import Bench, benches
from tests.support.chains import build_diamond
from tests.support.routers import about_a_task


class Room(Bench):
    """A room with a light."""

    @tool
    def switch(self, on: bool = True) -> str:
        """Switch the light.

        It takes a moment.

        Args:
            on: Whether it shall be on.
        """
        return "on" if on else "off"

    @tool
    def leave(self) -> None:
        """Leave the room."""
        raise SystemExit(1)

    def configure_additional_apps(self) -> str:
        return "light bulbs are in"


def rooms() -> dict[str, Any]:
    return {"a": Room("a"), "b": Room("b", "process"), "c": Room("c", "serial")}


@pytest.fixture
def router() -> Iterator[LocalRouter]:
    with LocalRouter(rooms) as open_router:
        yield open_router


def test_what_there_is(router: LocalRouter) -> None:
    assert router.get_available_tasks() == ["a", "b", "c"]
    assert router.get_concurrency_modes() == {"a": "thread", "b": "process", "c": "serial"}
    assert router.get_dependency_graph() == {"a": [], "b": [], "c": []}
    assert router.supports_dependency_chain() is True
    assert router.get_trial_worker_active() is False


def test_the_dependency_graph() -> None:
    with LocalRouter(build_diamond("thread")) as router:
        graph = router.get_dependency_graph()
    assert graph == {"top": [], "left": ["top"], "right": ["top"], "end": ["left", "right"]}


def test_a_task_as_an_agent_sees_it(router: LocalRouter) -> None:
    assert router.get_task_prompt("a") == "task a"
    (schema,) = [
        each["function"]
        for each in router.get_available_tools_for_task("a")["tools"]
        if each["function"]["name"] == "switch"
    ]
    assert schema["parameters"]["properties"]["on"] == {
        "type": "boolean", "default": True, "description": "Whether it shall be on.",
    }  # fmt: skip
    guide = router.get_task_guide("a")
    assert guide.startswith("task a")
    assert router.get_tools_guide("a") in guide
    assert router.configure_additional_apps("a") == "light bulbs are in"


def test_verbosity(router: LocalRouter) -> None:
    def said(verbosity: Any = None) -> str:
        tools = router.get_available_tools_for_task("a", verbosity)["tools"]
        return str(next(t["function"]["description"] for t in tools if t["function"]["name"] == "switch"))

    assert str(router.current_verbosity) == "brief"
    assert said() == "Switch the light."
    assert "It takes a moment." in said("full")
    router.set_verbosity("full")
    assert str(router.current_verbosity) == "full"
    assert "It takes a moment." in said()
    assert "It takes a moment." in router.get_tools_guide("a")
    assert "moment" not in router.get_tools_guide("a", "minimal")
    with pytest.raises(ConfigError, match="verbosity"):
        router.set_verbosity("loud")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="verbosity"):
        LocalRouter(rooms, verbosity="loud")  # type: ignore[arg-type]


@pytest.mark.parametrize("task_id", ["a", "b", "c"])
def test_a_trial_on_the_shared_surface(task_id: str, router: LocalRouter) -> None:
    assert router.execute_tool(task_id, "switch", {"on": False}).result == "off"
    status = router.get_task_status(task_id)
    assert (status["attempted"], status["submitted"], status["tool_calls"]) == (True, False, 1)
    result = router.submit_answer(task_id, 0.75)
    assert (result.task_id, result.score, result.tool_statistics) == (
        task_id,
        0.75,
        {"switch": {"calls": 1, "errors": 0}},
    )
    assert router.get_task_status(task_id)["score"] == 0.75
    assert router.get_task_state(task_id)["submitted_answer"] == 0.75


def test_acting_after_the_end_begins_a_new_trial(router: LocalRouter) -> None:
    router.execute_tool("a", "switch", {})
    workspace = router.get_task_state("a")["workspace"]
    router.submit_answer("a", 1)
    assert not router.execute_tool("a", "saw", {}).success
    status = router.get_task_status("a")
    assert (status["submitted"], status["tool_calls"]) == (False, 1)
    assert router.get_task_state("a")["workspace"] != workspace
    assert not Path(workspace).exists()
    assert router.surrender_task("a").surrendered
    assert router.submit_answer("a", 0.25).score == 0.25
    assert router.submit_answer("a", 0.5).score == 0.5


def test_a_shared_trial_that_broke_is_replaced(router: LocalRouter) -> None:
    with pytest.raises(ToolError):
        router.execute_tool("a", "leave", {})
    assert router.execute_tool("a", "switch", {}).result == "on"


def test_the_shared_surface_serves_all_process_and_serial_class_tasks(router: LocalRouter) -> None:
    """None keeps the others waiting."""
    assert [router.get_task_prompt(task) for task in "bcbc"] == ["task b", "task c", "task b", "task c"]
    opened = router.create_trial("b")
    router.close_trial(opened["trial_runtime_id"])


def test_threads_share_one_shared_trial(router: LocalRouter) -> None:
    barrier = threading.Barrier(8)
    seen: list[str] = []

    def look() -> None:
        barrier.wait(10)
        seen.append(router.get_task_state("a")["workspace"])

    threads = [threading.Thread(target=look) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1


def test_trials_are_isolated(router: LocalRouter) -> None:
    one, two = router.create_trial("a", trial_index=1), router.create_trial("a", trial_index=2, seed=7)
    assert one["trial_runtime_id"].startswith("tr_")
    assert (one["task_id"], one["mcp_url"]) == ("a", None)
    first = router.for_trial(one["trial_runtime_id"], "a", workspace=one["workspace"])
    second = router.for_trial(two["trial_runtime_id"], "a", verbosity="full")
    assert (first.current_verbosity, second.current_verbosity) == ("brief", "full")
    first.execute_tool("a", "python", {"code": "env.marked = 1; (env.current_work_dir / 'file').touch()"})
    look = "result = [getattr(env, 'marked', 0), len(list(env.current_work_dir.iterdir())), env.seed]"
    assert first.execute_tool("a", "python", {"code": look}).result == [1, 1, 0]
    assert second.execute_tool("a", "python", {"code": look}).result == [0, 0, 7]
    assert router.execute_tool("a", "python", {"code": look}).result == [0, 0, 0]
    assert first.submit_answer("a", 1).score == 1
    assert second.get_task_status("a")["submitted"] is False
    assert second.get_task_state("a")["trial_id"] == "a#2"
    assert Path(one["workspace"]).is_dir()
    assert router.close_trial(one["trial_runtime_id"])["warnings"] == []
    assert not Path(one["workspace"]).exists()
    second.submit_answer("a", 1)
    with pytest.raises(SubmissionError, match="submitted already"):
        second.submit_answer("a", 1)


def test_a_bound_router_knows_its_own_task_only(router: LocalRouter) -> None:
    """Neither another task, nor one that there is not; what is not about a task it still tells."""
    bound = router.for_trial(router.create_trial("a")["trial_runtime_id"], "a")
    told = "this router is bound to a trial of task 'a', and was asked about 'b'"
    for ask in about_a_task(bound):
        with pytest.raises(OtherTask, match=f"^{told}$"):
            ask("b")
    with pytest.raises(OtherTask, match="was asked about None"):
        bound.get_task_prompt(None)  # type: ignore[arg-type]
    assert bound.get_available_tasks() == ["a", "b", "c"]
    assert bound.submit_answer("a", 1).score == 1
    other = bound.for_trial(router.create_trial("b")["trial_runtime_id"], "b")
    assert other.submit_answer("b", 1).score == 1


def test_ids_that_are_not_there(router: LocalRouter) -> None:
    for ask in (
        router.get_task_prompt,
        router.create_trial,
        router.get_task_status,
        router.get_available_tools_for_task,
    ):
        with pytest.raises(NotFound, match="there is no task 'x'; known: 'a', 'b', 'c'"):
            ask("x")
    with pytest.raises(NotFound, match="no trial 'tr_0'"):
        router.close_trial("tr_0")
    with pytest.raises(NotFound, match="no trial 'tr_0'"):
        router.for_trial("tr_0", "a").get_task_prompt("a")
    with pytest.raises(NotFound, match="no episode 'e'"):
        router.close_episode("e")
    closed = router.create_trial("a")["trial_runtime_id"]
    router.close_trial(closed)
    with pytest.raises(NotFound):
        router.close_trial(closed)
    with pytest.raises(NotFound):
        router.for_trial(closed, "a").execute_tool("a", "switch", {})


def test_a_second_trial_that_must_run_alone_is_refused_and_does_not_wait_for_ever(router: LocalRouter) -> None:
    opened = router.create_trial("b")
    with pytest.raises(ConfigError, match="a trial of 'c' must run alone here, and one of 'b' is open: close it first"):
        router.create_trial("c")
    router.close_trial(opened["trial_runtime_id"])
    router.close_trial(router.create_trial("c")["trial_runtime_id"])


def test_outputs_pass_inside_an_episode() -> None:
    with LocalRouter(build_diamond("thread")) as router:
        for episode in ("one", "two"):
            for task, answer in (("top", {"value": 10}), ("left", {"value": 11}), ("right", {"value": 20})):
                opened = router.create_trial(task, episode_id=episode)
                bound = router.for_trial(opened["trial_runtime_id"], task)
                assert bound.submit_answer(task, answer).score == 1
                router.close_trial(opened["trial_runtime_id"])
            opened = router.create_trial("end", episode_id=episode)
            assert "- a: 11\n- b: 20" in router.for_trial(opened["trial_runtime_id"], "end").get_task_prompt("end")
            router.close_episode(episode)
            with pytest.raises(NotFound):
                router.close_trial(opened["trial_runtime_id"])


def test_outputs_can_be_given() -> None:
    with LocalRouter(build_diamond("thread")) as router:
        opened = router.create_trial("left", outputs={"top": {"answer": {"value": 4}, "score": 1.0}, "other": 1})
        assert "- a: 4" in router.for_trial(opened["trial_runtime_id"], "left").get_task_prompt("left")


def test_after_close_nothing_is_left() -> None:
    router = LocalRouter(rooms)
    shared = Path(router.get_task_state("a")["workspace"])
    own = Path(router.create_trial("a")["workspace"])
    router.close()
    assert not shared.exists()
    assert not own.exists()
    with pytest.raises(CorralError, match="this router is closed"):
        router.get_task_prompt("a")
    router.close()


def test_closing_a_router_that_was_never_used() -> None:
    LocalRouter(benches(a="thread")).close()


@pytest.mark.parametrize("environments", [7, {"a": 1}, {"b": Bench("a")}, list])
def test_environments_that_are_none(environments: Any) -> None:
    with pytest.raises(CorralError):
        LocalRouter(environments)


def test_sync_and_async_have_the_same_methods() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(AsyncLocalRouter) - public(LocalRouter) == {"watch"}
