"""Each trial gets an instance of its own, however the author wrote the class."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import WRAPPER_ASSIGNMENTS
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import pytest

from corral.environment import CorralState, Environment, build_environments
from corral.errors import ConfigError, EnvStartError, TaskGraphError
from corral.tasks import InputRef, TaskDefinition
from corral.tools import Tool, tool
from corral.types import ToolCall


class Plain(Environment):
    """What all of these tests' environments answer."""

    def get_task_prompt(self) -> str:
        return "do it"

    def score(self) -> float:
        return 1.0


class Positional(Plain):
    def __init__(self, task_id: str, notes: list[Any]) -> None:
        super().__init__(task_id)
        notes.append("mutated by the constructor")
        self.notes = notes


class KeywordOnly(Plain):
    def __init__(self, *, task_id: str, notes: list[Any]) -> None:
        super().__init__(task_id=task_id)
        self.notes = [*notes, "made"]


class LateSuper(Plain):
    def __init__(self, task_id: str) -> None:
        self.notes: list[Any] = []
        self.state.feedback = "early"
        self.add_tool(self.look)
        self.early_seed = self.seed
        self.concurrency = "process"
        super().__init__(task_id)

    def look(self) -> Any:
        return self


class Closure(Plain):
    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        self.notes: list[Any] = []

        @tool
        def who() -> Any:
            """Say whose tool this is."""
            return self

        self.add_tool(who)


class Locked(Plain):
    def __init__(self, task_id: str, lock: Any) -> None:
        super().__init__(task_id)
        self.notes: list[Any] = []
        self.given = lock
        self.lock = threading.Lock()


class Methods(Plain):
    def __init__(self, task_id: str = "t") -> None:
        super().__init__(task_id)
        self.notes: list[Any] = []

    @tool
    def who(self, loud: bool = False) -> Any:
        """Say whose tool this is."""
        return self

    @tool(hidden=("env",))
    def same(self, env: Methods) -> bool:
        return env is self

    @staticmethod
    @tool
    def fixed(x: int) -> int:
        return x

    @tool
    @staticmethod
    def fixed_too(x: int) -> int:
        return x


class Inherited(Methods):
    @tool
    def more(self) -> int:
        return 2


class Abstract(Plain, ABC):
    @abstractmethod
    def measure(self) -> float: ...


class Concrete(Abstract):
    notes: list[Any]

    def __init__(self) -> None:
        super().__init__("t")
        self.notes = []

    def measure(self) -> float:
        return 1.0


STYLES: dict[str, Callable[[], Any]] = {
    "positional": lambda: Positional("t", ["given"]),
    "keyword-only": lambda: KeywordOnly(task_id="t", notes=["given"]),
    "late-super": lambda: LateSuper("t"),
    "closure": lambda: Closure("t"),
    "lock": lambda: Locked("t", threading.Lock()),
    "methods": Methods,
    "inherited": Inherited,
    "abc": Concrete,
}


@pytest.mark.parametrize("make", STYLES.values(), ids=STYLES.keys())
def test_nothing_put_on_one_trial_is_seen_by_another(make: Callable[[], Any]) -> None:
    prototype = make()
    before = copy.copy(prototype.notes)
    first = prototype.new_instance(1)
    first.notes.append("mark")
    first.state.feedback = "mark"
    first.extra = "mark"
    second = prototype.new_instance(2)
    assert type(second) is type(prototype)
    assert second.notes == prototype.notes == before
    assert second.state is not first.state
    assert second.state.feedback != "mark"
    assert not hasattr(second, "extra")
    assert (first.seed, second.seed, prototype.seed) == (1, 2, 0)
    assert second.task_id == second.state.task_id == "t"


def test_arguments_are_kept_as_they_were_before_the_constructor_changed_them() -> None:
    given: list[Any] = ["given"]
    prototype = Positional("t", given)
    given.append("changed by the caller")
    assert prototype.new_instance().notes == ["given", "mutated by the constructor"]


def test_an_argument_without_a_copy_is_shared() -> None:
    lock = threading.Lock()
    prototype = Locked("t", lock)
    made = prototype.new_instance()
    assert made.given is lock
    assert made.lock is not prototype.lock


@pytest.mark.parametrize("make", [lambda: Closure("t"), lambda: Methods("t"), lambda: LateSuper("t")])
def test_tools_are_bound_to_their_own_instance(make: Callable[[], Any]) -> None:
    prototype = make()
    made = prototype.new_instance()
    name = "look" if isinstance(made, LateSuper) else "who"
    assert made.get_tools()[name].run({}) is made
    assert prototype.get_tools()[name].run({}) is prototype


def test_the_base_class_is_usable_before_its_constructor() -> None:
    made = LateSuper("t").new_instance(7)
    assert made.early_seed == 7
    assert made.state.feedback == "early"
    assert made.concurrency == "process"


def test_what_is_set_after_construction_is_repeated_as_a_copy() -> None:
    prototype = Methods()
    prototype.limits = {"max": [1]}
    prototype.notes = ["set later"]
    prototype.me = [prototype]
    prototype.lock = lock = threading.Lock()
    made: Any = prototype.new_instance()
    made.limits["max"].append(2)
    again: Any = prototype.new_instance()
    assert again.limits == {"max": [1]}
    assert again.notes == ["set later"]
    assert again.me[0] is again
    assert again.lock is lock


def test_what_is_changed_in_place_after_construction_is_repeated() -> None:
    prototype = Methods()
    prototype.notes.append("added by the builder")
    made = prototype.new_instance()
    made.notes.append("mark")
    assert prototype.new_instance().notes == ["added by the builder"]


def test_what_is_deleted_after_construction_stays_away() -> None:
    prototype = Methods()
    del prototype.notes
    assert not hasattr(prototype.new_instance(), "notes")


def test_tools_added_after_construction_are_repeated() -> None:
    prototype = Methods()

    def later(x: int) -> int:
        return x

    prototype.add_tool(later)
    prototype.add_tool(tool(name="bound")(prototype.close))
    made = prototype.new_instance()
    assert {"later", "bound", "who"} <= set(made.get_tools())
    made.add_tool(tool(name="mine")(lambda: 1))
    assert "mine" not in prototype.new_instance().get_tools()


def test_a_constructor_that_works_once_is_replaced_by_a_copy() -> None:
    class Once(Plain):
        made = 0

        def __init__(self) -> None:
            Once.made += 1
            if Once.made > 1:
                raise RuntimeError("only one of these")
            super().__init__("t")
            self.notes: list[Any] = []

    prototype = Once()
    first = prototype.new_instance(4)
    first.notes.append("mark")
    second = prototype.new_instance(5)
    assert second.notes == []
    assert (first.seed, second.seed) == (4, 5)


def test_a_tool_that_the_builder_closes_over_the_environment_works_on_each_trials_own() -> None:
    env: Any = Methods()

    def helper(x: int) -> list[Any]:
        env.notes.append(x)
        return list(env.notes)

    @tool
    def note(x: int, *, twice: bool = False) -> list[Any]:
        """Note it."""
        return helper(x)

    env.add_tool(note)
    first, second = env.new_instance(1), env.new_instance(2)
    for made, x in ((first, 1), (second, 2)):
        offered = made.get_tools()["note"]
        assert offered.run(offered.validate({"x": x})) == [x]
        assert offered.schema() == note.schema()
    assert env.notes == []


def test_a_tool_closed_over_self_is_moved_with_a_copied_prototype() -> None:
    class OnceClosed(Plain):
        made = 0

        def __init__(self) -> None:
            OnceClosed.made += 1
            if OnceClosed.made > 1:
                raise RuntimeError("only one of these")
            super().__init__("t")

            def who() -> Any:
                """Who it is."""
                return self

            name, kind = "__type_params__", TypeVar("T")  # as of ``def who[T]()``
            setattr(who, name, (kind,))
            self.add_tool(who)

    prototype = OnceClosed()
    made = prototype.new_instance()
    before, after = prototype.get_tools()["who"], made.get_tools()["who"]
    assert after.run({}) is made
    for name in (*WRAPPER_ASSIGNMENTS, "__type_params__"):
        assert getattr(after.function, name) == getattr(before.function, name)


def test_arguments_that_are_one_object_stay_one() -> None:
    class Both(Plain):
        def __init__(self, a: list[Any], b: dict[str, Any]) -> None:
            super().__init__("t")
            self.a, self.b = a, b

    shared: list[Any] = []
    made = Both(shared, {"in": shared}).new_instance()
    assert made.a is made.b["in"]
    assert made.a is not shared


def test_a_copy_that_fails_half_way_spoils_no_other() -> None:
    inner: list[Any] = [1, threading.Lock()]

    class Two(Plain):
        def __init__(self, broken: list[Any], shared: list[Any]) -> None:
            super().__init__("t")
            self.shared = shared

    assert Two([inner], inner).new_instance().shared is inner


def test_an_argument_that_is_used_up_is_not_used_twice() -> None:
    class Reads(Plain):
        def __init__(self, rows: Iterator[int]) -> None:
            super().__init__("t")
            self.rows = list(rows)

    assert Reads(i for i in range(3)).new_instance().rows == [0, 1, 2]


def test_where_no_way_works_the_error_says_what_to_do() -> None:
    class Neither(Plain):
        made = 0

        def __init__(self) -> None:
            Neither.made += 1
            if Neither.made > 1:
                raise RuntimeError("only one of these")
            super().__init__("t")
            self.lock = threading.Lock()

    with pytest.raises(EnvStartError, match=r"no fresh Neither.*only one of these.*cannot pickle.*configure_add"):
        Neither().new_instance()


def test_method_tools_and_inherited_ones() -> None:
    tools = Inherited().get_tools()
    assert list(tools) == ["who", "same", "fixed", "fixed_too", "more"]
    assert list(tools["who"].schema()["function"]["parameters"]["properties"]) == ["loud"]
    assert list(tools["fixed"].schema()["function"]["parameters"]["properties"]) == ["x"]
    assert tools["fixed_too"].run({"x": 3}) == 3
    assert "env" not in str(tools["same"].schema())


def test_a_subclass_may_change_or_drop_a_tool() -> None:
    class Changed(Methods):
        who: Any = None

        @tool
        def same(self, other: int) -> int:
            return other

    tools = Changed().get_tools()
    assert "who" not in tools
    assert tools["same"].run({"other": 1}) == 1


def test_two_tools_of_one_name_are_refused() -> None:
    env = Methods()
    with pytest.raises(ConfigError, match="two tools named 'who'"):
        env.add_tool(tool(name="who")(lambda: 1))
    assert isinstance(env.get_tools()["who"], Tool)

    class Twice(Methods):
        @tool(name="who")
        def other(self) -> int:
            return 1

    with pytest.raises(ConfigError, match="two tools named 'who'"):
        Twice()


def _class_with(name: str, function: Any, *bases: type) -> Any:
    return type("Lab", (*bases, Plain), {name: function})


@pytest.mark.parametrize("name", ["score", "get_task_prompt", "close", "state", "seed", "get_tools", "concurrency"])
def test_a_tool_in_the_place_of_what_corral_uses_is_refused(name: str) -> None:
    """At its class's definition, also by way of a class that it is mixed with. Its name as a tool is free."""

    def work(self: Any) -> int:
        """Work."""
        return 1

    with pytest.raises(ConfigError, match=rf"Lab\.{name} cannot be a tool: .*@tool\(name='{name}'\)"):
        _class_with(name, tool(work))
    mixed = type("Mixed", (), {name: tool(work)})
    with pytest.raises(ConfigError, match=rf"Lab\.{name} cannot be a tool"):
        _class_with("other", None, mixed)
    assert list(_class_with("work", tool(name=name)(work))("a").get_tools()) == [name]
    assert list(_class_with("let_go", tool(work))("a").get_tools()) == ["work"]


def no_self() -> int:
    """Work."""
    return 1


def no_self_but_data(times: int) -> int:
    """Work."""
    return times


def only_named(*, self: Any) -> int:
    """Work."""
    return 1


def own_word(this, times: int) -> int:  # type: ignore[no-untyped-def]
    """Work."""
    return times


def typed(self: list[int], env: Environment) -> int:
    """Work."""
    return 1


def foreign(env: Environment) -> int:
    """Work."""
    return 1


@pytest.mark.parametrize(
    ("function", "is_method"),
    [(no_self, False), (no_self_but_data, False), (only_named, False), (own_word, True), (typed, True),
     (foreign, True)],
)  # fmt: skip
def test_a_tool_of_a_class_takes_its_instance(function: Any, is_method: bool) -> None:
    if is_method:
        assert function.__name__ in _class_with("work", tool(function))("a").get_tools()
    else:
        with pytest.raises(ConfigError, match=f"tool '{function.__name__}' of Lab takes no self"):
            _class_with("work", tool(function))
    static = _class_with("work", staticmethod(tool(function)))
    assert list(static("a").get_tools()) == [function.__name__]
    assert list(_class_with("work", tool(staticmethod(function)))("a").get_tools()) == [function.__name__]


def test_a_class_of_environments_may_take_options() -> None:
    class Optional(Plain):
        def __init_subclass__(cls, /, size: int = 0) -> None:
            cls.size = size  # type: ignore[attr-defined]

    class Large(Optional, size=7):
        pass

    assert Large.size == 7  # type: ignore[attr-defined]


def test_tools_for_jobs_come_with_a_background_tool_only() -> None:
    assert "poll_job" not in Methods().get_tools()
    env = Methods()
    env.add_tool(tool(background=True, name="slow")(lambda: 1))
    assert list(env.get_tools())[-3:] == ["slow", "poll_job", "cancel_job"]
    shown = env.get_tools()["poll_job"].schema()["function"]["parameters"]["properties"]
    assert list(shown) == ["job_id", "wait_s"]


@pytest.mark.parametrize(("mode", "good"), [("process", True), ("serial", True), ("fast", False), (None, True)])
def test_concurrency_is_checked(mode: Any, good: bool) -> None:
    class Declared(Plain):
        concurrency = mode or "thread"

    makers: list[Callable[[], Environment]] = [lambda: Declared("t"), lambda: Plain("t", concurrency=mode)]
    for make in makers:
        if good:
            assert make().concurrency == (mode or "thread")
        else:
            with pytest.raises(ValueError, match="concurrency must be"):
                make()


def test_other_mistakes_of_authors_are_named() -> None:
    class NoSuper(Plain):
        def __init__(self) -> None:
            pass

    class OwnState(Plain):
        def __init__(self) -> None:
            super().__init__("t")
            self.state = {}  # type: ignore[assignment]

    class Stale(Plain):
        fresh = "thaw"  # type: ignore[assignment]

    with pytest.raises(ConfigError, match=r"NoSuper\.__init__ must call super"):
        NoSuper()
    with pytest.raises(ConfigError, match=r"OwnState: self\.state is"):
        OwnState()
    with pytest.raises(ConfigError, match="fresh must be"):
        Stale("t")
    with pytest.raises(ConfigError, match="task_id must be text"):
        Plain("")
    with pytest.raises(ConfigError, match=r"Environment has no score\(\)"):
        Environment("t").score()
    with pytest.raises(TypeError, match="abstract"):
        Abstract("t")  # type: ignore[abstract]


def test_there_is_no_work_directory_outside_a_trial(tmp_path: Path) -> None:
    env = Methods()
    with pytest.raises(RuntimeError, match="only during a trial"):
        _ = env.current_work_dir
    env.state.workspace = tmp_path
    assert env.current_work_dir == tmp_path


def test_whether_it_configures() -> None:
    class Configures(Plain):
        def configure_additional_apps(self) -> str:
            return "started"

    assert Configures("t").configures
    assert not Plain("t").configures
    assert Plain("t").configure_additional_apps() == "not configured"


def test_the_state_is_plain_data(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    call = ToolCall("t", {"x": 1}, True, {"small": numpy.ones((2, 3)), "large": numpy.zeros((20, 300))})
    state = CorralState("t", "t#0", submitted_answer=(1, 2), tool_calls=[call], workspace=tmp_path)
    data = state.to_dict()
    assert data["submitted_answer"] == [1, 2]
    assert data["workspace"] == str(tmp_path)
    assert data["tool_calls"][0]["result"] == {"small": [[1.0] * 3] * 2, "large": "<array float64 (20, 300)>"}


@pytest.mark.parametrize("make", [v for k, v in STYLES.items() if k != "lock"])
def test_instances_go_through_cloudpickle(make: Callable[[], Any]) -> None:
    prototype = make()
    prototype.get_tools()
    again = cloudpickle.loads(cloudpickle.dumps(prototype))
    made = again.new_instance(3)
    assert made.notes == prototype.notes
    assert list(made.get_tools()) == list(prototype.get_tools())
    assert made.seed == 3


SCRIPT = """
from corral.environment import Environment
from corral.tools import tool
import cloudpickle, sys
class Mine(Environment):
    def __init__(self, task_id, k):
        super().__init__(task_id); self.k = k
        @tool
        def inner(x: int) -> int:
            return x * self.k
        self.add_tool(inner)
    @tool
    def outer(self, x: int) -> int:
        return x + self.k
env = Mine("t", 3); env.get_tools()["outer"].schema()
sys.stdout.buffer.write(cloudpickle.dumps(env))
"""


def test_a_class_of_a_script_reaches_another_process() -> None:
    data = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True).stdout
    tools = cloudpickle.loads(data).new_instance().get_tools()
    assert tools["inner"].run(tools["inner"].validate({"x": "2"})) == 6
    assert tools["outer"].run(tools["outer"].validate({"x": 2})) == 5


# build_environments


def look() -> int:
    return 1


def define(name: str, **changes: Any) -> TaskDefinition:
    fields: dict[str, Any] = {
        "description": "Do.", "tools": [], "scoring_fn": lambda answer, **kw: float(answer), "submission_format": "x",
    }  # fmt: skip
    return TaskDefinition(name, **{**fields, **changes})


def test_components_and_parents_are_linked() -> None:
    envs = build_environments([
        define("b", input_map={"x": InputRef("a", "answer.v")}), define("alone"), define("a"),
    ])  # fmt: skip
    assert envs["b"].parents == ("a",)
    assert envs["b"].component == envs["a"].component == ("b", "a")
    assert envs["alone"].component == ("alone",)
    made = envs["b"].new_instance()
    assert (made.parents, made.component) == (("a",), ("b", "a"))
    made.take_outputs({"a": {"answer": {"v": 4}, "score": 1.0}})
    assert made.inputs == {"x": 4}
    assert "- x: 4" in str(made.get_task_prompt())


def test_a_bad_graph_builds_nothing() -> None:
    with pytest.raises(TaskGraphError, match="a -> b -> a"):
        build_environments([
            define("a", input_map={"x": InputRef("b")}), define("b", input_map={"x": InputRef("a")}),
        ])  # fmt: skip
    with pytest.raises(TaskGraphError, match="two tasks have the id 'a'"):
        build_environments([define("a"), define("a")])
    with pytest.raises(TaskGraphError, match="needs 'z'"):
        build_environments([define("a", scoring_inputs={"x": InputRef("z")})])
    with pytest.raises(ConfigError, match="takes TaskDefinitions"):
        build_environments(["a"])  # type: ignore[list-item]


def test_tool_names_are_looked_up() -> None:
    task = define("a", tools=["look", "see"])
    envs = build_environments([task], available_tools={"look": look, "see": tool(name="see")(lambda: 2)})
    assert list(envs["a"].get_tools()) == ["look", "see"]
    with pytest.raises(ConfigError, match="no tool 'see' in available_tools; there are look"):
        build_environments([task], available_tools=[look])


class OwnInit(Environment):
    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        self.notes: list[Any] = []

    @tool
    def own(self) -> int:
        return 1


class KeywordInit(Environment):
    def __init__(self, *, task_id: str, definition: TaskDefinition, size: int = 2) -> None:
        super().__init__(task_id, definition)
        self.size = size


def factory(task_id: str) -> Environment:
    return OwnInit(task_id)


@pytest.mark.parametrize("env_cls", [Environment, OwnInit, KeywordInit, factory])
def test_env_classes_with_their_own_constructors(env_cls: Any, tmp_path: Path) -> None:
    task = define("a", tools=[look], initial_input={"k": [1]})
    env = build_environments([task], env_cls=env_cls, base_work_dir=tmp_path, concurrency="serial")["a"]
    made = env.new_instance()
    assert "look" in made.get_tools()
    assert (made.concurrency, made.base_work_dir) == ("serial", tmp_path)
    made.inputs["k"].append(2)
    assert env.new_instance().inputs == {"k": [1]}


def test_an_env_class_that_does_not_fit_is_named() -> None:
    with pytest.raises(ConfigError, match=r"calls Positional\('a'\), which does not fit.*notes"):
        build_environments([define("a")], env_cls=Positional)
    with pytest.raises(ConfigError, match="made a int"):
        build_environments([define("a")], env_cls=lambda task_id: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigError, match="gave task 'a' the id 'other'"):
        build_environments([define("a")], env_cls=lambda task_id: OwnInit("other"))
    with pytest.raises(ConfigError, match="two tools named 'own'"):
        build_environments([define("a", tools=[tool(name="own")(look)])], env_cls=OwnInit)


def test_hidden_arguments_by_name(tmp_path: Path) -> None:
    class Hides(Plain):
        def hidden_arguments(self) -> dict[str, Any]:
            return {"meter": "M"}

    env = Hides("t", define("t", initial_input={"sample": "S"}))
    env.state.workspace = tmp_path
    values = {name: env.hidden_argument(name) for name in ("env", "state", "work_dir", "sample", "meter")}
    assert values == {"env": env, "state": env.state, "work_dir": tmp_path, "sample": "S", "meter": "M"}
    with pytest.raises(KeyError):
        env.hidden_argument("other")


def test_a_second_argument_that_is_no_definition_is_refused_in_a_sentence() -> None:
    class Mine(Environment):
        def __init__(self, task_id: str, goal: Any) -> None:
            super().__init__(task_id, goal)

    with pytest.raises(ConfigError, match=r"Mine\('a'\): the second argument is a TaskDefinition, not 3\.0"):
        Mine("a", 3.0)
