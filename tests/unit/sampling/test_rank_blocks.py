"""The directory of blocks: against a list of blocks, node limits included."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmreplay.sampling.rank_blocks import Directory, most_blocks

WIDTH, FANOUT = 8, 4


def make(counts, n_blocks=None, fanout=FANOUT):
    """Blocks 1 to len(counts), whose keys begin at 0, 10, 20, …"""
    directory = Directory(WIDTH, fanout)
    directory.grow(n_blocks or len(counts))
    directory.load(np.array(counts), np.arange(len(counts)) * (10 + 0j))
    return directory


def in_order(directory):
    """The blocks of each node."""
    return [
        directory._blocks[node, : directory._n_blocks[node]].tolist() for node in directory._order
    ]


def check(directory, blocks, counts):
    """`blocks` in order hold `counts` items."""
    assert [block for node in in_order(directory) for block in node] == blocks
    assert len(directory) == len(blocks)
    starts = np.cumsum(counts) - counts
    assert directory.before(np.array(blocks)).tolist() == starts.tolist()
    block, inside = directory.locate(np.arange(sum(counts)))
    assert block.tolist() == np.repeat(blocks, counts).tolist()
    expected = [i for count in counts for i in range(count)]
    assert inside.tolist() == expected


@given(st.lists(st.integers(1, WIDTH), min_size=1, max_size=80))
def test_items_are_found_by_rank_and_blocks_by_key(counts):
    directory = make(counts)
    blocks = list(range(1, len(counts) + 1))
    check(directory, blocks, counts)
    lows = np.arange(len(counts)) * (10 + 0j)
    assert directory.find(lows).tolist() == blocks
    assert directory.find(lows + 9 + 5j).tolist() == blocks
    # The imaginary part decides where the real ones are equal; what is below everything is first.
    assert directory.find(lows - 1j).tolist() == [max(block - 1, 1) for block in blocks]


@given(st.data())
def test_blocks_come_and_go_and_nodes_with_them(data):
    directory = make([WIDTH], n_blocks=200)
    blocks, lows = [1], [0.0]
    for _ in range(data.draw(st.integers(1, 60))):
        place = data.draw(st.integers(0, len(blocks) - 1))
        if data.draw(st.booleans()) and len(blocks) < 150:
            end = lows[place + 1] if place + 1 < len(lows) else lows[place] + 1
            between = np.linspace(lows[place], end, data.draw(st.integers(1, 9)) + 2)[1:-1]
            # Not what fell to the next node when its first block went.
            between = between[directory.find(between.astype(np.complex128)) == blocks[place]]
            new = directory.new_blocks(len(between))
            assert not set(new) & set(blocks)
            directory.counts[new] = WIDTH
            directory.attach(blocks[place], np.array(new, np.int64), between.astype(np.complex128))
            blocks[place + 1 : place + 1] = new
            lows[place + 1 : place + 1] = between.tolist()
        elif len(blocks) > 1:
            directory.add(np.array([blocks[place]]), np.array([-WIDTH]))
            directory.counts[blocks[place]] = 0
            directory.detach(blocks[place])
            assert not directory.holds(blocks[place])
            del blocks[place]
            del lows[place]
        nodes = [len(node) for node in in_order(directory)]
        assert max(nodes) <= FANOUT
        assert all(a + b > FANOUT // 2 for a, b in itertools.pairwise(nodes))
        assert all(directory.holds(block) for block in blocks)
        # A block's own keys stay its own.
        assert directory.find(np.array(lows, np.complex128))[1:].tolist() == blocks[1:]
    check(directory, blocks, [WIDTH] * len(blocks))


def test_neighbours_are_those_in_the_same_node():
    directory = make([1] * 6)
    assert in_order(directory) == [[1, 2, 3], [4, 5, 6]]
    assert [directory.neighbours(block) for block in range(1, 7)] == [
        (0, 2), (1, 3), (2, 0), (0, 5), (4, 6), (5, 0)
    ]  # fmt: skip


def test_the_keys_of_a_nodes_first_block_are_the_next_ones_when_it_is_gone():
    directory = make([WIDTH] * 6)
    assert in_order(directory) == [[1, 2, 3], [4, 5, 6]]
    directory.detach(4)
    assert directory.find(np.array([29, 30, 35, 40], np.complex128)).tolist() == [3, 5, 5, 5]


def test_joined_nodes_tell_which_block_has_a_new_neighbour():
    directory = make([WIDTH] * 6)
    assert [directory.detach(block) for block in (1, 2, 4)] == [[], [], []]
    assert in_order(directory) == [[3], [5, 6]]
    assert directory.detach(5) == [6]
    assert in_order(directory) == [[3, 6]]


def test_blocks_are_sparse_if_they_are_empty_or_fit_with_a_neighbour_into_half_a_block():
    directory = make([1, 4, 0, 4, 5, 1])
    every = np.arange(1, 7)
    assert directory.sparse(every).tolist() == [2, 3]
    directory = make([2, 2, 8, 3, 2, 2])
    assert directory.sparse(every).tolist() == [1, 2, 5, 6]
    assert directory.sparse(np.array([3, 5])).tolist() == [5]


@pytest.mark.parametrize("fanout", [4, 5, 64])
@pytest.mark.parametrize("width", [2, 3, 128])
def test_there_are_always_enough_blocks_for_every_pair_of_neighbours_and_one_more(width, fanout):
    for n_items in (0, 1, width, 10 * width, 1000 * width):
        # The most: of each pair one block is as good as empty, of each pair of nodes one has one.
        a_pair = width // 2 + 1
        assert most_blocks(n_items, width, fanout) >= 2 * (n_items // a_pair) + 1
