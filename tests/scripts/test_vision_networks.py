"""The paper's 21 networks: how large they are, and their weights."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Parameters as published with torchvision's weights, Inception's without those of its
# auxiliary classifier.
PUBLISHED = {
    "alexnet": 61_100_840,
    "inception_v3": 23_834_568,
    "densenet121": 7_978_856,
    "densenet161": 28_681_000,
    "densenet169": 14_149_480,
    "densenet201": 20_013_928,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "squeezenet1_0": 1_248_424,
    "squeezenet1_1": 1_235_496,
    "vgg11": 132_863_336,
    "vgg11_bn": 132_868_840,
    "vgg13": 133_047_848,
    "vgg13_bn": 133_053_736,
    "vgg16": 138_357_544,
    "vgg16_bn": 138_365_992,
    "vgg19": 143_667_240,
    "vgg19_bn": 143_678_248,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_network_is_as_large_as_published(name: str) -> None:
    from models import vision

    assert set(vision.NAMES) == set(PUBLISHED)
    with torch.device("meta"):
        model = vision.structure(name).eval()
        logits = model(torch.empty(2, *vision.input_shape(name)))
    assert sum(one.numel() for one in model.parameters()) == PUBLISHED[name]
    assert logits.shape == (2, 1000)


@pytest.mark.parametrize("name", ["squeezenet1_1", "resnet18", "stack:4"])
def test_results_neither_vanish_nor_grow_and_weights_go_by_the_seed(name: str) -> None:
    from models import vision

    torch.manual_seed(3)
    before = torch.get_rng_state()
    model, same, other = (vision.build(name, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    kept = {key: v for key, v in model.state_dict().items() if v.is_floating_point()}
    for key, value in kept.items():
        assert torch.equal(same.state_dict()[key], value)
        # Statistics, too, are not those of a new layer.
        assert (value == other.state_dict()[key]).float().mean() < 0.01
    noise = torch.randn(1, *vision.input_shape(name))
    assert 0.05 < float(model(noise).std()) < 50
    assert not any(one.requires_grad for one in model.parameters())
