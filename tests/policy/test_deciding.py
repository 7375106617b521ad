"""A layer decided in one call: as when it is recorded and asked for one after the other."""

import numpy as np
import pytest

from miractl.native.residency import Status
from miractl.policy.brain import Brain
from miractl.policy.heat import HeatTable
from miractl.policy.registry import make_policy, ways_for
from miractl.policy.routing import OneToken, Routed, Segment
from miractl.policy.slots import CompiledSlots, one_pool
from tests.policy.test_slot_tables import same

pytestmark = pytest.mark.usefixtures("kernels")
LAYERS, EXPERTS, TOP, WAYS = 3, 4, 2, 2


def table(policy: str) -> CompiledSlots:
    heat = HeatTable(LAYERS, EXPERTS, TOP, clock=lambda: 0.0, threshold=0.15)
    brain = Brain(make_policy(policy, TOP, WAYS, heat), heat)
    ways = ways_for(policy, (WAYS,) * LAYERS)
    return CompiledSlots(one_pool(sum(ways) + 2, ways, brain), 0, brain)


def steps(seed: int) -> list[tuple[Segment, ...]]:
    """One token of a text, and now and then a prompt, another text, or nobody's token."""
    rng, texts, position = np.random.default_rng(seed), 1, 0
    found: list[tuple[Segment, ...]] = []
    for _ in range(60):
        kind = rng.random()
        if kind < 0.1:
            texts, position = texts + 1, 0
            found.append((Segment(texts, 0, 3, 0),))
            position = 3
        elif kind < 0.2:
            texts += 1
            found.append((Segment(texts - 1, 0, 1, position), Segment(texts, 1, 2, 0)))
            position = 1
        elif kind < 0.25:
            found.append((Segment(-1, 0, 1, 0),))
        else:
            found.append((Segment(texts, 0, 1, position),))
            position += 1
    return found


@pytest.mark.parametrize("policy", ["learned", "heat", "lru", "lfu", "lru-shift", "heat-shift"])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_as_one_after_the_other(policy: str, seed: int) -> None:
    rng, now = np.random.default_rng(seed), 0.0
    slow, fast = table(policy), table(policy)
    kept = OneToken(LAYERS, TOP).steps
    for number, segments in enumerate(steps(seed)):
        for layer in range(LAYERS):
            now += float(rng.exponential(0.03))
            shape = (segments[-1].stop, EXPERTS)
            ids = np.argsort(rng.random(shape) * np.arange(1, EXPERTS + 1), axis=1)[:, :TOP].copy()
            scores = rng.random(ids.shape, np.float32)
            told = Routed(layer, ids, scores, segments, number)
            slow.record(told, now)
            status, router = slow.ask(told), (0, 0)
            if len(ids) == 1:  # is copied to where it stays
                router, told = told.addresses, kept[layer]
                told.segments, told.step = segments, number
            decided = fast.decide(told, (now, 0.0, 0.0, 0.0, 0), router=router)
            assert decided == (Status.HERE if len(slow.here) == slow.different else status)
            np.testing.assert_array_equal(told.ids, ids)
            assert (slow.here, slow.placed) == (fast.here, fast.placed)
            while slow.waits:
                assert fast.waits
                for one in (slow, fast):
                    one.end_transit()
                    one.ask_again()
            for one in (slow, fast):
                one.end_transit()
            same(slow, fast)
            np.testing.assert_array_equal(slow.policy.worth, fast.policy.worth)
            np.testing.assert_array_equal(slow.policy.activations, fast.policy.activations)
    for one in (slow, fast):
        one.policy.close()


def test_experts_that_do_not_exist_change_nothing() -> None:
    decided = table("learned")
    alone, scores = (Segment(0, 0, 1, 0),), np.ones((1, TOP), np.float32)
    for expert in (-1, EXPERTS):
        ids = np.array([[0, expert]])
        with pytest.raises(ValueError, match="Got ids"):
            decided.decide(Routed(0, ids, scores, alone, 0), (0.0, 0.0, 0.0, 0.0, 0))
    assert decided.hits.sum() + decided.misses.sum() + len(decided) == 0
    decided.policy.close()
