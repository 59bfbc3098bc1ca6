"""The planner against a naive one, its guarantees one by one, and its cost counted in steps."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Mapping

import pytest

from corral.errors import ConfigError, ProtocolError
from corral.planner import CONFIGURE, GATE, GLOBAL, SLOT, Planner, Request, model_resource, task_resource


class NaivePlanner:
    """The specification: walk over all that waits, lowest order first, and start what fits."""

    def __init__(self, capacities: Mapping[str, int]) -> None:
        self.capacity = dict(capacities)
        self.in_use: Counter[str] = Counter()
        self.waiting: list[Request] = []
        self.held: dict[Hashable, dict[str, int]] = {}

    def fits(self, request: Request) -> bool:
        return all(
            name not in self.capacity or self.in_use[name] + amount <= self.capacity[name]
            for name, amount in request.demands.items()
        )

    def admit(self) -> list[Hashable]:
        started = []
        for request in sorted(self.waiting, key=lambda r: r.order):
            if self.fits(request):
                self.in_use.update(request.demands)
                self.held[request.key] = dict(request.demands)
                self.waiting.remove(request)
                started.append(request.key)
        return started

    def release(self, key: Hashable, resources: list[str] | None) -> None:
        held = self.held[key]
        for name in list(held) if resources is None else resources:
            self.in_use[name] -= held.pop(name)
        if resources is None:
            del self.held[key]


@pytest.mark.parametrize("seed", range(60))
def test_admits_what_a_naive_planner_admits(seed: int) -> None:
    rng = random.Random(seed)
    tasks = [task_resource(str(number)) for number in range(rng.choice([1, 3, 10]))]
    models = [model_resource(name) for name in "ab"]
    total = rng.randint(1, 6)
    capacities = {GLOBAL: total, SLOT: rng.randint(1, 3), GATE: 1, CONFIGURE: rng.randint(1, 2), models[0]: 2}
    capacities |= dict.fromkeys(tasks, rng.randint(1, 3))
    planner, naive = Planner(capacities), NaivePlanner(capacities)

    def some_request(number: int) -> Request:
        demands = {GLOBAL: total if rng.random() < 0.1 else 1, rng.choice(tasks): 1, rng.choice(models): 1}
        demands |= {name: 1 for name in (SLOT, GATE, CONFIGURE, "licence:x") if rng.random() < 0.3}
        if rng.random() < 0.05:
            demands = {}
        return Request(number, demands, rng.choice([0, number, rng.randint(0, 50)]))

    for number in range(400):
        event = rng.random()
        if event < 0.45:
            request = some_request(number)
            planner.add(request)
            naive.waiting.append(request)
        elif event < 0.8 and naive.held:
            key = rng.choice(list(naive.held))
            held = list(naive.held[key])
            early = rng.sample(held, rng.randint(0, len(held))) if rng.random() < 0.3 else None
            planner.release(key, early)
            naive.release(key, early)
        elif event < 0.9 and naive.waiting:
            gone = naive.waiting.pop(rng.randrange(len(naive.waiting)))
            assert planner.withdraw(gone.key)
            if rng.random() < 0.5:  # put off: it comes back under its key, behind those of the same order
                planner.add(gone)
                naive.waiting.append(gone)
        elif event < 0.93:
            resource = rng.choice([SLOT, CONFIGURE, *tasks, "licence:x"])
            capacities[resource] = rng.randint(1, 4)
            planner.resize(resource, capacities[resource])
            naive.capacity[resource] = capacities[resource]
        if rng.random() < 0.7:
            assert planner.admit() == naive.admit()
            assert planner.admit() == []
            assert not any(naive.fits(request) for request in naive.waiting)
            for request in naive.waiting:
                blocker = planner.blocked_on(request.key)
                assert blocker is not None
                assert naive.in_use[blocker] + request.demands[blocker] > naive.capacity[blocker]
            assert planner.blocked() == Counter(planner.blocked_on(request.key) for request in naive.waiting)
        assert (planner.waiting, planner.running) == (len(naive.waiting), len(naive.held))
        assert all(planner.in_use(name) == naive.in_use[name] for name in capacities)


def test_takes_all_resources_in_one_step_or_none() -> None:
    planner = Planner({GLOBAL: 5, SLOT: 1})
    planner.add(Request("a", {GLOBAL: 1, SLOT: 1}))
    planner.add(Request("b", {GLOBAL: 1, SLOT: 1}))
    assert planner.admit() == ["a"]
    assert planner.in_use(GLOBAL) == 1  # "b" waits for the slot and holds nothing meanwhile
    assert planner.blocked_on("b") == SLOT
    planner.release("a")
    assert planner.admit() == ["b"]


def test_a_blocked_request_holds_back_only_those_that_want_the_same() -> None:
    planner = Planner({GLOBAL: 4, task_resource("x"): 1})
    for key, task in [("x0", "x"), ("x1", "x"), ("y0", "y"), ("y1", "y")]:
        planner.add(Request(key, {GLOBAL: 1, task_resource(task): 1}))
    assert planner.admit() == ["x0", "y0", "y1"]
    planner.release("y0")
    assert planner.admit() == []
    planner.release("x0")
    assert planner.admit() == ["x1"]


def test_equal_demands_start_in_order() -> None:
    planner = Planner({GLOBAL: 1})
    for key, order in [("late", 9), ("first", 1), ("second", 1), ("soon", 4)]:
        planner.add(Request(key, {GLOBAL: 1}, order))
    seen = []
    while started := planner.admit():
        seen += started
        planner.release(started[0])
    assert seen == ["first", "second", "soon", "late"]


def test_nothing_runs_beside_a_request_for_all_of_a_resource() -> None:
    planner = Planner({GLOBAL: 3})
    planner.add(Request("alone", {GLOBAL: 3}, 0))
    planner.add(Request("a", {GLOBAL: 1}, 1))
    planner.add(Request("b", {GLOBAL: 1}, 2))
    assert planner.admit() == ["alone"]
    planner.release("alone")
    assert planner.admit() == ["a", "b"]
    planner.add(Request("alone", {GLOBAL: 3}, 0))
    planner.release("a")
    assert planner.admit() == []
    planner.release("b")
    assert planner.admit() == ["alone"]


def test_some_resources_can_be_released_early() -> None:
    planner = Planner({GLOBAL: 2, CONFIGURE: 1})
    for key in "ab":
        planner.add(Request(key, {GLOBAL: 1, CONFIGURE: 1}))
    assert planner.admit() == ["a"]
    planner.release("a", [CONFIGURE])
    assert planner.admit() == ["b"]
    assert (planner.running, planner.in_use(GLOBAL), planner.in_use(CONFIGURE)) == (2, 2, 1)
    planner.release("a")
    assert planner.in_use(GLOBAL) == 1


@pytest.mark.parametrize(
    ("key", "resources"),
    [("nobody", None), ("waits", None), ("a", [SLOT]), ("a", [GLOBAL, SLOT]), ("a", [GLOBAL, GLOBAL])],
)
def test_releasing_what_is_not_held_changes_nothing(key: str, resources: list[str] | None) -> None:
    planner = Planner({GLOBAL: 1})
    planner.add(Request("a", {GLOBAL: 1}))
    planner.add(Request("waits", {GLOBAL: 1}))
    planner.admit()
    with pytest.raises(ProtocolError, match=key):
        planner.release(key, resources)
    assert (planner.in_use(GLOBAL), planner.running, planner.waiting) == (1, 1, 1)
    assert planner.admit() == []
    planner.release("a")
    assert planner.admit() == ["waits"]


def test_a_withdrawn_request_passes_its_place_on() -> None:
    planner = Planner({GLOBAL: 1})
    for key in "abc":
        planner.add(Request(key, {GLOBAL: 1}))
    planner.admit()
    assert planner.withdraw("b")
    assert not planner.withdraw("b")
    assert not planner.withdraw("a")  # it runs
    planner.release("a")
    assert planner.admit() == ["c"]
    planner.add(Request("b", {GLOBAL: 1}))  # it may come back
    planner.release("c")
    assert planner.admit() == ["b"]


def test_a_request_that_can_never_start_is_refused() -> None:
    planner = Planner({GLOBAL: 2})
    with pytest.raises(ConfigError, match="needs 3 of global, and there are never more than 2"):
        planner.add(Request("big", {GLOBAL: 3}))
    assert (planner.waiting, planner.admit()) == (0, [])


@pytest.mark.parametrize("amount", [0, -1, 1.5, True, float("nan"), "abc"])
def test_amounts_are_whole_numbers(amount: int) -> None:
    with pytest.raises(ConfigError, match="capacity of slot"):
        Planner({SLOT: amount})
    planner = Planner({SLOT: 1})
    with pytest.raises(ConfigError, match="for slot"):
        planner.add(Request("a", {SLOT: amount}))
    with pytest.raises(ConfigError, match="capacity of slot"):
        planner.resize(SLOT, amount)
    assert planner.waiting == 0


def test_a_key_is_known_once() -> None:
    planner = Planner({GLOBAL: 1})
    planner.add(Request("a", {GLOBAL: 1}))
    with pytest.raises(ProtocolError, match="already knows a"):
        planner.add(Request("a", {GLOBAL: 1}))
    planner.admit()
    with pytest.raises(ProtocolError, match="already knows a"):
        planner.add(Request("a", {GLOBAL: 1}))
    planner.release("a")
    planner.add(Request("a", {GLOBAL: 1}))


def test_resources_without_capacity_are_counted_but_not_limited() -> None:
    planner = Planner({})
    for number in range(5):
        planner.add(Request(number, {GLOBAL: 1} if number else {}))
    assert len(planner.admit()) == 5
    assert planner.in_use(GLOBAL) == 4


def test_what_waits_is_counted_by_what_it_waits_for() -> None:
    planner = Planner({GLOBAL: 3, task_resource("a"): 1, GATE: 1})
    for index in range(3):
        planner.add(Request(f"a{index}", {GLOBAL: 1, task_resource("a"): 1}, index))
        planner.add(Request(f"g{index}", {GLOBAL: 1, GATE: 1}, index))
    assert planner.admit() == ["a0", "g0"]
    assert planner.blocked() == {task_resource("a"): 2, GATE: 2}
    planner.add(Request("b0", {GLOBAL: 1}, 9))
    planner.add(Request("b1", {GLOBAL: 1}, 10))
    assert planner.admit() == ["b0"]
    assert sum(planner.blocked().values()) == planner.waiting == 5
    assert planner.blocked()[GLOBAL] >= 1
    planner.release("b0")
    planner.release("g0")
    assert planner.admit() == ["g1", "b1"]
    assert sum(planner.blocked().values()) == planner.waiting == 3


def test_a_resource_can_grow_and_shrink() -> None:
    planner = Planner({SLOT: 1})
    for number in range(4):
        planner.add(Request(number, {SLOT: 1}))
    assert planner.admit() == [0]
    planner.resize(SLOT, 3)
    assert planner.admit() == [1, 2]
    planner.resize(SLOT, 1)
    planner.release(0)
    planner.release(1)
    assert planner.admit() == []  # what runs goes on; the new capacity is still taken
    planner.release(2)
    assert planner.admit() == [3]


def test_a_resource_does_not_shrink_below_what_waits() -> None:
    planner = Planner({GLOBAL: 4})
    planner.add(Request("alone", {GLOBAL: 4}))
    with pytest.raises(ConfigError, match="cannot shrink to 3: alone waits for 4"):
        planner.resize(GLOBAL, 3)
    assert planner.admit() == ["alone"]


def test_those_that_come_out_of_order_start_in_order() -> None:
    planner, rng = Planner({GLOBAL: 1}), random.Random(1)
    orders = rng.sample(range(-500, 500), 1000)
    for order in orders:
        planner.add(Request(order, {GLOBAL: 1, task_resource(str(order % 3)): 1}, order))
    gone = set(orders[::5])
    assert all(planner.withdraw(order) for order in gone)
    seen: list[Hashable] = []
    while started := planner.admit():
        seen += started
        planner.release(started[0])
    assert seen == sorted(set(orders) - gone)


def steps_per_admission(trials: int, tasks: int, *, order: str) -> float:
    """Run all trials, each releasing before the next starts, with every limit in play; count the steps."""
    capacities = {GLOBAL: 16, SLOT: 8, GATE: 1, model_resource("a"): 12}
    capacities |= {task_resource(str(task)): 2 for task in range(tasks)}
    planner = Planner(capacities)
    for number in range(trials):
        task = number % tasks if order == "round robin" else number * tasks // trials
        demands = {GLOBAL: 16 if task == 7 else 1, task_resource(str(task)): 1, model_resource("ab"[task % 2]): 1}
        if task % 3 == 0:
            demands[SLOT] = 1
        if task == 5:
            demands[GATE] = 1
        planner.add(Request(number, demands, number))
    rng = random.Random(1)
    running = planner.admit()
    admitted, most, before = len(running), 0, planner.evaluations
    while running:
        chosen = rng.randrange(len(running))
        running[chosen], running[-1] = running[-1], running[chosen]
        planner.release(running.pop())
        started = planner.admit()
        most = max(most, planner.evaluations - before - len(started))
        before = planner.evaluations
        running += started
        admitted += len(started)
    assert (admitted, planner.waiting) == (trials, 0)
    # No single call is expensive either, not even one that starts nothing.
    assert most < 20
    return planner.evaluations / trials


@pytest.mark.parametrize("order", ["round robin", "task by task"])
def test_cost_does_not_grow_with_what_waits(order: str) -> None:
    small = steps_per_admission(1_000, 100, order=order)
    large = steps_per_admission(100_000, 10_000, order=order)
    assert large < 4
    assert large < small * 1.5
