from __future__ import annotations

import torch

from repairability.algebra.scratch import Scratch

CPU = torch.device("cpu")


def test_memory_is_used_again_and_grows_to_the_largest() -> None:
    scratch = Scratch()
    large = scratch.take("a", (4, 6), torch.float32, CPU)
    small = scratch.take("a", (3, 2), torch.float32, CPU)
    assert (small.shape, small.is_contiguous(), small.data_ptr()) == ((3, 2), True, large.data_ptr())
    assert scratch.take("a", (5, 6), torch.float32, CPU).shape == (5, 6)


def test_names_and_types_stand_apart() -> None:
    scratch = Scratch()
    taken = [scratch.take(name, (2,), dtype, CPU) for name in "ab" for dtype in (torch.float32, torch.float64)]
    assert len({x.data_ptr() for x in taken}) == 4
    assert [x.dtype for x in taken] == [torch.float32, torch.float64] * 2
