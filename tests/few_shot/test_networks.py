"""The networks compute what their formulas say, and learn."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from bilevel.errors import InvalidInputError
from bilevel.few_shot import ConvNet, Episodes, ResNet12, generated_images


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("channels", "size", "last"), [(1, 28, 1), (3, 32, 4)])
def test_convnet_is_four_times_convolution_elu_pooling(channels, size, last, normalise):
    torch.manual_seed(0)
    network = ConvNet(channels, size, features=7, width=5, normalise=normalise).double().eval()
    images = torch.randn(4, channels, size, size, dtype=torch.float64)
    weights = list(network.parameters())
    values = images
    for _ in range(4):
        if normalise:
            values = F.conv2d(values, weights.pop(0), padding=1) / (1 + 1e-5) ** 0.5  # statistics 0 and 1
            values = values * weights.pop(0)[:, None, None] + weights.pop(0)[:, None, None]
        else:
            values = F.conv2d(values, weights.pop(0), weights.pop(0), padding=1)
        values = F.max_pool2d(F.elu(values), 2)
    weight, bias = weights
    assert weight.shape == (7, 5 * last)
    torch.testing.assert_close(network(images), values.flatten(1) @ weight.T + bias)


@pytest.mark.parametrize("channels", [1, 3])
def test_layers_keep_channels_innermost(channels):
    network, layouts = ConvNet(channels, width=5, normalise=True).double(), []
    network[0].register_forward_hook(
        lambda layer, given, out: layouts.append(out.is_contiguous(memory_format=torch.channels_last))
    )
    images = torch.randn(6, channels, 28, 28, dtype=torch.float64)
    plain = images
    for layer in network:
        plain = layer(plain)
    layouts.clear()
    torch.testing.assert_close(network(images), plain, rtol=1e-10, atol=1e-12)
    assert layouts == [True]


def test_bfloat16_gives_features_and_gradients_of_nearly_the_same_direction():
    torch.manual_seed(0)
    exact, coarse = ConvNet(width=8, normalise=True), ConvNet(width=8, normalise=True, bfloat16=True)
    coarse.load_state_dict(exact.state_dict())
    images, found = torch.rand(12, 1, 28, 28), []
    for network in (exact, coarse):
        features = network(images)
        features.square().sum().backward()
        found.append((features, torch.cat([value.grad.flatten() for value in network.parameters()])))
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert one.ne(other).any()
        assert F.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.97


def test_the_papers_convnet():
    network = ConvNet()
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 100)
    convolutions = 64 * (9 * 1 + 1) + 3 * 64 * (9 * 64 + 1)
    assert sum(weight.numel() for weight in network.parameters()) == convolutions + 100 * (64 + 1)
    assert not list(network.buffers())


def test_resnet12_has_metaoptnets_size():
    network = ResNet12()
    widths = (3, 64, 160, 320, 640)
    blocks = sum(9 * (a * b + 2 * b * b) + a * b + 4 * 2 * b for a, b in pairwise(widths))
    assert sum(weight.numel() for weight in network.parameters()) == blocks
    assert network.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 2560)


def test_resnet12_block():
    torch.manual_seed(0)
    network = ResNet12(channels=2, image_size=16, features=3, widths=(4, 5, 6, 7)).double().eval()
    images = torch.randn(3, 2, 16, 16, dtype=torch.float64)
    state = network.state_dict()

    def convolution(name, bn, values, padding):
        scale = state[f"{bn}.weight"] / (state[f"{bn}.running_var"] + 1e-5).sqrt()
        moved = F.conv2d(values, state[f"{name}.weight"], padding=padding)
        moved = moved - state[f"{bn}.running_mean"][:, None, None]
        return moved * scale[:, None, None] + state[f"{bn}.bias"][:, None, None]

    values = images
    for block in range(4):
        start, parts = values, f"{block}.convolutions"
        for i in (0, 3, 6):
            values = convolution(f"{parts}.{i}", f"{parts}.{i + 1}", values, 1)
            values = F.leaky_relu(values, 0.1) if i < 6 else values
        values = values + convolution(f"{block}.shortcut.0", f"{block}.shortcut.1", start, 0)
        values = F.max_pool2d(F.leaky_relu(values, 0.1), 2)
    expected = values.flatten(1) @ state["5.weight"].T + state["5.bias"]
    torch.testing.assert_close(network(images), expected)


@pytest.mark.parametrize("make", [lambda: ConvNet(width=4), lambda: ResNet12(1, 28, widths=(4, 4, 4, 4))])
def test_gradients_reach_every_parameter(make):
    torch.manual_seed(0)
    network = make()
    network(torch.rand(6, 1, 28, 28)).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in network.parameters())


def prototype_loss(network, tasks):
    """Cross-entropy of negative squared distances to the class means of the support features."""
    count, shape = len(tasks), tasks.support.shape[2:]
    support, query = (
        network(part.reshape(-1, *shape)).reshape(count, part.shape[1], -1) for part in (tasks.support, tasks.query)
    )
    ways = int(tasks.query_labels.max()) + 1
    scores = -torch.cdist(query, support.unflatten(1, (ways, -1)).mean(2)).square()
    accuracy = (scores.argmax(-1) == tasks.query_labels).double().mean()
    return F.cross_entropy(scores.flatten(0, 1), tasks.query_labels.flatten()), float(accuracy)


def test_a_convnet_learns_the_generated_set_in_seconds():
    """On classes it has never seen it makes less than half of the errors it made before."""
    images = generated_images(60, 12, size=20)
    train, novel = (Episodes(part, 5, 1, 3) for part in (images[:40], images[40:]))
    torch.manual_seed(0)
    network = ConvNet(image_size=20, features=16, width=16)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    test = novel.sample(60, torch.Generator().manual_seed(99))
    before = prototype_loss(network, test)[1]
    for step in range(60):
        optimizer.zero_grad()
        prototype_loss(network, train.sample(8, torch.Generator().manual_seed(step)))[0].backward()
        optimizer.step()
    after = prototype_loss(network, test)[1]
    assert 1 - after < 0.5 * (1 - before), (before, after)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConvNet(image_size=15), "image_size must be at least 16, .* got 15"),
        (lambda: ConvNet(features=0), "features must be an integer of at least 1, got 0"),
        (lambda: ResNet12(image_size=8), "image_size must be at least 16, .* got 8"),
        (lambda: ResNet12(widths=(4, 4)), r"widths must be four positive numbers, got \(4, 4\)"),
    ],
)
def test_errors(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()
