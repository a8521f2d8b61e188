"""Tiles that two processes share, and rows that are sent; test_losses_and_miners.py has values and gradients."""

import torch

from pml_ext.distributed.gather import gather_rows


def test_tiles_are_divided_into_equal_parts(collectives):
    parts = zip(*(saved["gather"]["part"] for saved in collectives), strict=True)
    for count, slices in zip((1, 2, 5), parts, strict=True):
        tiles = list(range(count))
        assert [tile for each in slices for tile in tiles[each]] == tiles
        lengths = [len(tiles[each]) for each in slices]
        assert max(lengths) - min(lengths) <= 1


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
