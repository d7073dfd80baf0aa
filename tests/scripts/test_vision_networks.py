"""The paper's 21 networks: what they are made of, and their weights."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Parameters as published with torchvision's weights, and tensors in the state:
# weights, biases, statistics.
PUBLISHED = {
    "alexnet": (61_100_840, 16),
    "inception_v3": (27_161_264, 580),
    "densenet121": (7_978_856, 727),
    "densenet161": (28_681_000, 967),
    "densenet169": (14_149_480, 1015),
    "densenet201": (20_013_928, 1207),
    "resnet18": (11_689_512, 122),
    "resnet34": (21_797_672, 218),
    "resnet50": (25_557_032, 320),
    "resnet101": (44_549_160, 626),
    "resnet152": (60_192_808, 932),
    "squeezenet1_0": (1_248_424, 52),
    "squeezenet1_1": (1_235_496, 52),
    "vgg11": (132_863_336, 22),
    "vgg11_bn": (132_868_840, 62),
    "vgg13": (133_047_848, 26),
    "vgg13_bn": (133_053_736, 76),
    "vgg16": (138_357_544, 32),
    "vgg16_bn": (138_365_992, 97),
    "vgg19": (143_667_240, 38),
    "vgg19_bn": (143_678_248, 118),
}
KEYS = {
    "alexnet": ["features.10.bias", "classifier.6.weight"],
    "inception_v3": [
        "Conv2d_1a_3x3.conv.weight",
        "Mixed_5b.branch3x3dbl_3.bn.running_mean",
        "Mixed_6e.branch7x7dbl_5.conv.weight",
        "Mixed_7a.branch7x7x3_4.bn.bias",
        "Mixed_7c.branch3x3dbl_3b.bn.num_batches_tracked",
        "AuxLogits.conv1.conv.weight",
        "fc.bias",
    ],
    "densenet161": [
        "features.norm0.running_var",
        "features.denseblock4.denselayer24.conv2.weight",
        "features.transition3.norm.weight",
        "features.norm5.bias",
        "classifier.weight",
    ],
    "resnet18": ["layer4.0.downsample.1.running_var", "layer2.1.bn2.bias", "fc.weight"],
    "resnet50": ["layer1.0.downsample.0.weight", "layer3.5.conv3.weight", "bn1.weight"],
    "squeezenet1_0": ["features.12.expand3x3.weight", "classifier.1.bias"],
    "squeezenet1_1": ["features.12.squeeze.weight", "features.3.expand1x1.bias"],
    "vgg16_bn": ["features.41.running_mean", "classifier.3.weight"],
}
QUICK = ("squeezenet1_1", "resnet18")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_network_is_as_large_as_published(name: str) -> None:
    from models import vision

    assert set(vision.NAMES) == set(PUBLISHED)
    parameters, tensors = PUBLISHED[name]
    with torch.device("meta"):
        model = vision.structure(name).eval()
        logits = model(torch.empty(2, *vision.input_shape(name)))
    assert sum(one.numel() for one in model.parameters()) == parameters
    assert len(model.state_dict()) == tensors
    # Those of torchvision.
    assert set(KEYS.get(name, ())) <= set(model.state_dict())
    assert logits.shape == (2, 1000)


@pytest.mark.parametrize("name", QUICK)
def test_results_neither_vanish_nor_grow(name: str) -> None:
    from models import vision

    model = vision.build(name)
    noise = torch.randn(1, *vision.input_shape(name))
    with torch.no_grad():
        spread = float(model(noise).std())
    assert 0.05 < spread < 50
    assert not model.training
    assert not any(one.requires_grad for one in model.parameters())


@pytest.mark.parametrize("blocks", [1, 4])
def test_a_stack_keeps_its_shape(blocks: int) -> None:
    from models import vision

    name = f"stack:{blocks}"
    model = vision.build(name)
    noise = torch.randn(2, *vision.input_shape(name))
    with torch.no_grad():
        result = model(noise)
    assert result.shape == noise.shape == (2, 64, 56, 56)
    assert bool(result.isfinite().all())


def test_weights_go_by_the_seed_alone() -> None:
    from models import vision

    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, same, other = (vision.build("squeezenet1_1", seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for key, value in one.state_dict().items():
        assert torch.equal(same.state_dict()[key], value)
        assert not torch.equal(other.state_dict()[key], value)


@pytest.mark.parametrize("batch_norm", ["bn1", "layer4.1.bn2"])
def test_statistics_are_not_those_of_a_new_layer(batch_norm: str) -> None:
    from models import vision

    layer = vision.build("resnet18").get_submodule(batch_norm)
    for tensor, unused in (
        (layer.weight, 1.0),
        (layer.bias, 0.0),
        (layer.running_mean, 0.0),
        (layer.running_var, 1.0),
    ):
        assert not bool((tensor == unused).any())
    assert bool((layer.running_var > 0.5).all())


@pytest.mark.parametrize(
    "name",
    [
        *("", "resnet19", "alexnet ", "stack", "stack:0", "stack:1001", "stack:²"),
    ],
)
def test_other_names_are_refused(name: str) -> None:
    from models import vision

    for function in (vision.build, vision.structure, vision.input_shape):
        with pytest.raises(ValueError, match=r"stack"):
            function(name)
