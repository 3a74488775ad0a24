import pytest
import torch
import torch.nn.functional as F

from posterity.data import CropFlip
from posterity.types import PosterityError


def placed(x: torch.Tensor, y: torch.Tensor, padding: int, border: str) -> tuple[int, int, bool]:
    """The one shift and flip that turns the image x into y."""
    big = F.pad(x, (padding,) * 4, mode=border)
    height, width = x.shape[-2:]
    found = [
        (down, right, flip)
        for down in range(2 * padding + 1)
        for right in range(2 * padding + 1)
        for flip in (False, True)
        for crop in [big[:, down : down + height, right : right + width]]
        if torch.equal(crop.flip(-1) if flip else crop, y)
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("border", ["constant", "replicate"])
@pytest.mark.parametrize(("padding", "flip"), [(2, True), (2, False), (0, True), (1, False)])
def test_every_output_is_a_shifted_or_mirrored_copy_and_all_occur(padding: int, flip: bool, border: str) -> None:
    x = torch.rand(400, 2, 6, 5, generator=torch.Generator().manual_seed(0)) + 1  # no pixel equals the padding
    y = CropFlip(padding, flip, repeat_edge=border == "replicate")(x, torch.Generator().manual_seed(1))
    seen = [placed(a, b, padding, border) for a, b in zip(x, y, strict=True)]
    # 400 draws from at most 50 places: one of them missing has probability below 50·exp(-8) = 2 %; the seed is fixed.
    assert len(set(seen)) == (2 * padding + 1) ** 2 * (2 if flip else 1)
    assert flip == any(mirrored for _, _, mirrored in seen)
    if flip:
        assert 160 < sum(mirrored for _, _, mirrored in seen) < 240  # four std of a fair coin


def test_the_generator_decides_and_the_input_stays() -> None:
    x = torch.rand(20, 3, 8, 8)
    before = x.clone()
    g = torch.Generator()
    first = CropFlip()(x, g.manual_seed(5))
    assert torch.equal(first, CropFlip()(x, g.manual_seed(5)))
    assert not torch.equal(first, CropFlip()(x, g))
    assert torch.equal(x, before) and first.dtype == x.dtype


def test_refusals() -> None:
    with pytest.raises(PosterityError, match="negative"):
        CropFlip(-1)
    with pytest.raises(PosterityError, match=r"\[B, C, H, W\], got \(3, 4\)"):
        CropFlip()(torch.zeros(3, 4), torch.Generator())
