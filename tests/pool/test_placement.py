"""On which node a worker starts, and when it moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.pool.backend import Node
from corral.pool.placement import choose_node, is_crowded

SMALL, LARGE = Node("small", cpus=2), Node("large", cpus=8)


def test_workers_are_shared_out_by_processors() -> None:
    taken: list[Node] = []
    for _ in range(10):
        node = choose_node([SMALL, LARGE], taken)
        assert node is not None
        taken.append(node)
    assert Counter(taken) == {SMALL: 2, LARGE: 8}


def test_limits_hold_and_where_a_start_failed_is_the_last_choice() -> None:
    one, two = Node("one", limit=1), Node("two", limit=2)
    assert choose_node([one, two], [one], avoided=two) == two
    assert choose_node([one, two], [], avoided=one) == two
    assert choose_node([one, two], [one, two, two]) is None
    assert choose_node([], []) is None


def test_none_has_more_than_its_share_while_others_are_to_come() -> None:
    assert choose_node([LARGE], [LARGE] * 2, share=3) == LARGE
    assert choose_node([LARGE], [LARGE] * 3, share=3) is None


@pytest.mark.parametrize(
    ("taken", "crowded"),
    [
        ([SMALL] * 2, False),  # each has a processor of its own
        ([SMALL] * 3, True),
        ([SMALL] * 3 + [LARGE] * 10, True),
        ([SMALL] * 3 + [LARGE] * 11, False),
    ],
)
def test_a_worker_is_crowded_where_it_would_have_more_elsewhere(taken: list[Node], crowded: bool) -> None:
    assert is_crowded(SMALL, [SMALL, LARGE], taken) is crowded


def test_where_there_is_no_room_elsewhere_nobody_is_crowded() -> None:
    full = Node("full", cpus=8, limit=1)
    assert not is_crowded(SMALL, [SMALL, full], [SMALL] * 5 + [full])
    assert not is_crowded(SMALL, [SMALL], [SMALL] * 5)


cluster = st.lists(st.integers(1, 16), min_size=1, max_size=5).map(
    lambda cpus: [Node(str(number), cpus=count) for number, count in enumerate(cpus)]
)


@given(cluster, st.data())
def test_moving_comes_to_an_end_and_then_it_is_even(nodes: list[Node], data: st.DataObject) -> None:
    taken = data.draw(st.lists(st.sampled_from(nodes), max_size=40))
    for _ in range(len(taken) + 1):
        moving = next((index for index, node in enumerate(taken) if is_crowded(node, nodes, taken)), None)
        if moving is None:
            break
        left = taken.pop(moving)
        node = choose_node(nodes, taken)
        assert node is not None
        assert node != left
        taken.append(node)
    else:
        pytest.fail("workers move for ever")
    held = Counter(taken)
    if held:
        worst = max(held[node] / node.cpus for node in nodes)
        assert worst <= max(1, min((held[node] + 1) / node.cpus for node in nodes))
