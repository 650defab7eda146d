"""How much may wait in memory: each gets the same, nobody nothing, all together no more than the budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from membrane.gateway.memory import LEAST, MOST_ALL, MOST_ONE, MemoryBudget


def test_alone_a_queue_gets_all_that_one_may_have() -> None:
    assert MemoryBudget().each() == MOST_ONE


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=400))
def test_all_queues_together_hold_no_more_than_the_budget(steps: list[tuple[int, bool]]) -> None:
    memory = MemoryBudget()
    queues: dict[int, int] = {}
    for number, filled in steps:
        # Each takes what it may have at once: the worst that readers who do not read can do.
        before = queues.get(number, 0)
        queues[number] = memory.change(before, max(before, memory.each()) if filled else 0)
        assert memory.each() >= LEAST
        assert memory.held == sum(queues.values()) <= MOST_ALL + LEAST * len(queues)


def test_the_late_get_as_much_as_the_early() -> None:
    memory = MemoryBudget()
    queues = [0] * 4096
    for _round in range(3):
        for number, held in enumerate(queues):
            # An early queue that holds more than its share now is read no further, and its reader empties it.
            queues[number] = memory.change(
                held, min(memory.each(), held + LEAST) if held < memory.each() else held - LEAST
            )
    assert max(queues) <= 4 * LEAST and min(queues) >= LEAST
    assert memory.held <= MOST_ALL
