"""Images of a dataset's rows, at their places in the prompts."""

import json

import numpy as np
import pytest
from PIL import Image as Pictures

from turngym.envs.dataset_images import prompt_with_images
from turngym.envs.datasets import load_tasks
from turngym.envs.images import as_image
from turngym.errors import DataError

RED, BLUE = (as_image(np.full((2, 3, 3), value, np.uint8)) for value in (9, 200))


def shown(image):
    return {"type": "image", "image": image}


def text(words):
    return {"type": "text", "text": words}


def user(*parts):
    return {"role": "user", "content": list(parts)}


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("what?", [user(shown(RED), shown(BLUE), text("what?"))]),
        ("a <image>b<image>", [user(text("a "), shown(RED), text("b"), shown(BLUE))]),
        (
            [{"role": "system", "content": "s"}, user({"type": "image"}, text("x<image>"))],
            [{"role": "system", "content": "s"}, user(shown(RED), text("x"), shown(BLUE))],
        ),
        (
            [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "y"}, user({"type": "image"})],
            [user(shown(RED)), {"role": "assistant", "content": "y"}, user(shown(BLUE))],
        ),
    ],
)
def test_images_take_their_places_in_order(prompt, wanted):
    assert prompt_with_images(prompt, [RED, BLUE]) == wanted


@pytest.mark.parametrize("prompt", ["<image>", "<image><image><image>"])
def test_as_many_places_as_images_are_wanted(prompt):
    with pytest.raises(DataError, match=r"has [13] places for images .* and its row 2 images"):
        prompt_with_images(prompt, [RED, BLUE])
    with pytest.raises(DataError, match="no place in a prompt without a message of the user"):
        prompt_with_images([{"role": "system", "content": "s"}], [RED])


def test_paths_are_found_beside_the_dataset(tmp_path):
    RED.to_pil().save(tmp_path / "red.png")
    Pictures.new("RGB", (4, 4)).save(tmp_path / "black.png")
    rows = [
        {"input": "see <image>", "label": "r", "pictures": ["red.png"]},
        {"input": "and", "label": "b", "pictures": ["red.png", str(tmp_path / "black.png")]},
        {"input": "none", "label": "n", "pictures": None},
        {"input": "gone", "label": "g", "pictures": ["green.png"]},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    tasks = load_tasks(str(file), label_key="label", image_key="pictures", max_images=1)
    assert np.array_equal(np.asarray(tasks[0].prompt[0]["content"][1]["image"].to_pil()), np.asarray(RED.to_pil()))
    assert "pictures" not in tasks[0].data
    assert tasks[2].prompt == [{"role": "user", "content": "none"}]
    with pytest.raises(
        DataError, match=r"row 1, column 'pictures' holds 2 images; --data\.max_images_per_prompt lets 1"
    ):
        tasks[1]
    with pytest.raises(DataError, match="row 3, column 'pictures': there is no image"):
        tasks[3]
    first = tasks[0].id
    Pictures.new("RGB", (3, 2)).save(tmp_path / "red.png")
    assert load_tasks(str(file), label_key="label", image_key="pictures")[0].id != first
    with pytest.raises(DataError, match="no column 'images' for the images"):
        load_tasks(str(file), image_key="images")
