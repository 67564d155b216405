import numpy as np
import pytest
import torch

from swath.learn.encoders import Convolutions, ImageEncoder


@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84), (96, 64, 3), (1, 36, 36)])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_images_of_any_layout_become_features(shape, lead):
    encoder = ImageEncoder(shape, features=16)
    image = torch.randint(0, 256, (*lead, *shape), dtype=torch.uint8)
    kept = image.clone()
    features = encoder(image)
    assert features.shape == (*lead, 16)
    assert features.dtype == torch.float32
    assert torch.equal(image, kept)


def test_the_axis_of_the_channels_does_not_change_the_features():
    first, last = ImageEncoder((3, 40, 48), 8), ImageEncoder((40, 48, 3), 8)
    last.load_state_dict(first.state_dict())
    image = torch.randint(0, 256, (5, 3, 40, 48), dtype=torch.uint8)
    torch.testing.assert_close(first(image), last(image.movedim(1, -1)))


def test_a_small_image_gets_small_kernels_and_floats_are_not_divided():
    pixels = torch.randint(0, 256, (2, 7, 9, 3), dtype=torch.uint8)
    of_bytes, of_floats = Convolutions((7, 9, 3)), Convolutions((7, 9, 3), np.dtype(np.float32))
    of_floats.load_state_dict(of_bytes.state_dict())
    torch.testing.assert_close(of_bytes(pixels), of_floats(pixels / 255))
