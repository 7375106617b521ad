"""The size of the cache of keys and values: pages, blocks and sectors."""

from hypothesis import given
from hypothesis import strategies as st

from miractl.checkpoint.geometry import KvGroup
from miractl.plan.kv import KV_MEMORY, PAGE, paged_cache, pages

FULL = KvGroup(48, 1024, None)


def test_layers_that_attend_alike_share_blocks() -> None:
    cache = paged_cache([FULL], 2, 8192, 1, KV_MEMORY)
    assert pages(8192) == 33
    assert (cache.sectors, cache.blocks, cache.layers) == (39, 39, 48)  # 33 / 0.85
    assert cache.bytes == (39 + 2) * PAGE * 48 * 1024 * 2
    assert (cache.tokens, cache.requests) == (39 * PAGE, 1)


def test_layers_with_a_window_keep_its_pages() -> None:
    groups = [KvGroup(12, 1024, 128), KvGroup(12, 1024, None)]
    cache = paged_cache(groups, 2, 8192, 1, KV_MEMORY)
    assert cache.layers == 12
    assert cache.sectors == 40  # 33 pages and one for the window; 34 / 0.85
    assert cache.blocks == 20  # of 24 layers each


def test_the_bound_holds_but_for_one_request() -> None:
    one = paged_cache([FULL], 2, 8192, 1, 0)
    assert one.sectors == 34
    assert one.requests == 1
    some = paged_cache([FULL], 2, 8192, 100, 4 * KV_MEMORY)
    assert some.bytes <= 4 * KV_MEMORY
    assert some.requests == 4


@given(
    full=st.integers(1, 40),
    windowed=st.integers(0, 40),
    context=st.integers(1, 40000),
    count=st.integers(1, 300),
    bound=st.integers(0, 2**36),
)
def test_the_cache_is_what_its_blocks_say(
    full: int, windowed: int, context: int, count: int, bound: int
) -> None:
    groups = [KvGroup(full, 64, None)]
    groups += [KvGroup(windowed, 64, 1000)] if windowed else []
    cache = paged_cache(groups, 2, context, count, bound)
    page = PAGE * 64 * 2
    # As transformers makes sectors of blocks, and two spare ones.
    assert cache.sectors == -(-cache.blocks * (full + windowed) // cache.layers)
    assert cache.bytes == (cache.sectors + 2) * cache.layers * page
    least = paged_cache(groups, 2, context, 1, 0)
    assert least.bytes <= cache.bytes <= max(least.bytes, bound)
    assert 1 <= cache.requests <= count
