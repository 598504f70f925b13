"""What files written for OpenRLHF call images: read, or refused, and never left out."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image as Pictures

from turngym.envs.images import as_image
from turngym.envs.openrlhf.pictures import accumulate_mm_inputs, images_given, load_images
from turngym.errors import ImageError

PICTURE = Pictures.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))


def png() -> bytes:
    file = io.BytesIO()
    PICTURE.save(file, "PNG")
    return file.getvalue()


def test_whatever_form_they_come_in(tmp_path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    text = base64.encodebytes(png()).decode()  # in lines
    forms = [png(), str(tmp_path / "a.png"), text, "data:image/png;base64," + "".join(text.split())]
    assert images_given([*forms, None]) == [as_image(png())] * 4
    assert images_given(PICTURE) == images_given((PICTURE,)) == [as_image(PICTURE)]
    assert images_given(None) == images_given([]) == []
    assert [picture.tobytes() for picture in load_images([png(), PICTURE])] == [PICTURE.tobytes()] * 2


@pytest.mark.parametrize("value", ["https://a/b.png", "nowhere.png", 7, b"x"])
def test_what_cannot_be_read_is_no_missing_image(value) -> None:
    with pytest.raises(ImageError):
        load_images([PICTURE, value])


def test_tensors_of_later_images_stand_behind_those_of_earlier_ones() -> None:
    one, two = {"a": torch.tensor([[1.0]]), "b": torch.tensor([1])}, {"a": torch.tensor([[2.0], [3.0]])}
    both = accumulate_mm_inputs(one, two)
    assert both is not None
    assert {name: tensor.tolist() for name, tensor in both.items()} == {"a": [[1.0], [2.0], [3.0]], "b": [1]}
    assert accumulate_mm_inputs(None, None) is None
    assert accumulate_mm_inputs(one, None) == one
    assert accumulate_mm_inputs(None, two) == two
