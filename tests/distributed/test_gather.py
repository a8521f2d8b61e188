"""Tensors of two processes joined in the order of their ranks, and tiles that they share."""

import torch

from pml_ext.distributed.gather import gather_rows

from . import primitives

JOINED = torch.cat([primitives.rows(0), primitives.rows(1)])


def test_rows_are_joined_in_rank_order(collectives):
    for saved in collectives:
        joined = saved["gather"]["joined"]
        assert torch.equal(joined["x"], JOINED)
        assert joined["labels"].tolist() == [0, 1, 2, 0]
        assert joined["labels"].dtype == torch.int64
        assert joined["none"] is None


def test_own_rows_have_the_gradient_times_the_processes(collectives):
    """DistributedDataParallel divides by their number."""
    weights = torch.arange(1.0, 9.0, dtype=torch.float64).view(4, 2)
    for saved, own in zip(collectives, (weights[:3], weights[3:]), strict=True):
        assert torch.equal(saved["gather"]["gradient"], 2 * own)


def test_rows_of_any_layout_and_none_are_sent(collectives):
    for saved in collectives:
        parts = saved["gather"]["half"]
        assert [len(part) for part in parts] == [3, 1]
        assert torch.equal(torch.cat(parts), JOINED.bfloat16())
        assert saved["gather"]["empty"] == [0, 0]


def test_tiles_are_divided_and_their_results_joined(collectives):
    parts = zip(*(saved["gather"]["part"] for saved in collectives), strict=True)
    for count, slices in zip((1, 2, 5), parts, strict=True):
        tiles = list(range(count))
        assert [tile for each in slices for tile in tiles[each]] == tiles
        lengths = [len(tiles[each]) for each in slices]
        assert max(lengths) - min(lengths) <= 1
    for start, saved in zip((0, 3), collectives, strict=True):
        joined, starts = saved["gather"]["tiles"]
        assert torch.equal(joined[0], JOINED)
        assert torch.equal(joined[1], JOINED.sum(1))
        assert starts == [start, start]
        assert saved["gather"]["summed"][0].tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_tiles_are_shared_if_gradients_agree(collectives):
    for saved in collectives:
        assert saved["gather"]["shared"]
        assert not saved["gather"]["unlike"]


def test_one_row_of_a_column_is_sent(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        (part,) = gather_rows(torch.tensor([[3, 4]])[:, 0], [1])
    finally:
        torch.distributed.destroy_process_group()
    assert part.tolist() == [3]
