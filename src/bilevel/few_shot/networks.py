"""Networks from images to features: the paper's four convolutions, and MetaOptNet's ResNet-12."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .._checks import check_count
from ..errors import InvalidInputError


class ConvNet(nn.Sequential):
    """Four blocks convolution 3 x 3 - ELU - max-pooling 2 x 2, then a linear map to the features.

    The paper has "a network with four convolution-ELU-Maxpooling layers" and 100 features. It states neither the width,
    which is 64 here as usual, nor a batch normalisation.

    Parameters
    ----------
    channels, image_size
        The shape of the images, (..., channels, image_size, image_size); at least 16 pixels wide.
    features
        The number of features per image.
    width
        The number of channels of each block.
    normalise
        Whether to use batch normalisation between convolution and ELU. The paper has none. With it, the features of an
        image depend on the other images of its batch during training.
    bfloat16
        Compute the blocks in bfloat16, which halves the time on processors with instructions for it (AVX-512 BF16,
        AMX). The parameters and the last layer stay in float32.

    Examples
    --------
    >>> import torch
    >>> ConvNet(width=8)(torch.zeros(3, 1, 28, 28)).shape
    torch.Size([3, 100])
    """

    def __init__(
        self, channels: int = 1, image_size: int = 28, features: int = 100, width: int = 64, *, normalise: bool = False,
        bfloat16: bool = False,
    ) -> None:  # fmt: skip
        for name, value in (("channels", channels), ("features", features), ("width", width)):
            check_count(name, value)
        _check_image_size(image_size)
        blocks: list[nn.Module] = []
        for inputs in (channels, width, width, width):
            blocks += [nn.Conv2d(inputs, width, 3, padding=1, bias=not normalise)]
            blocks += [nn.BatchNorm2d(width)] if normalise else []
            blocks += [nn.MaxPool2d(2), nn.ELU()]  # ELU increases: the order does not matter, and this one needs less
        super().__init__(*blocks, nn.Flatten(), nn.Linear(width * (image_size // 16) ** 2, features))
        self.coarse = bfloat16

    def forward(self, images: Tensor) -> Tensor:
        """(n, channels, h, w) to (n, features)."""
        *blocks, last = self
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.coarse):
            features = _channels_last(images)
            for block in blocks:
                features = block(features)
        return last(features.to(images.dtype))


class ResNet12(nn.Sequential):
    """Four residual blocks of three convolutions each, with 64, 160, 320 and 640 channels.

    The network of MetaOptNet (Lee et al. 2019): batch normalisation, LeakyReLU with slope 0.1, max-pooling 2 x 2 after
    each block, features flattened without an average. Its DropBlock regularisation is left out.

    Parameters
    ----------
    channels, image_size
        The shape of the images, as in `ConvNet`; at least 16 pixels wide.
    features
        The number of outputs of a last linear map; None for the flattened 640 * (image_size // 16)^2 features of
        MetaOptNet.
    widths
        The numbers of channels of the four blocks.

    Examples
    --------
    >>> import torch
    >>> ResNet12(widths=(4, 4, 8, 8))(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 32])
    """

    def __init__(
        self,
        channels: int = 3,
        image_size: int = 32,
        features: int | None = None,
        *,
        widths: Sequence[int] = (64, 160, 320, 640),
    ) -> None:
        for name, value in (("channels", channels), ("features", 1 if features is None else features)):
            check_count(name, value)
        if len(widths) != 4 or min(widths) < 1:
            raise InvalidInputError(f"widths must be four positive numbers, got {widths}")
        _check_image_size(image_size)
        inputs = (channels, *widths[:-1])
        flat = widths[-1] * (image_size // 16) ** 2
        last = [] if features is None else [nn.Linear(flat, features)]
        super().__init__(*(ResidualBlock(a, b) for a, b in zip(inputs, widths, strict=True)), nn.Flatten(), *last)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, a=0.1, mode="fan_out", nonlinearity="leaky_relu")

    def forward(self, images: Tensor) -> Tensor:
        """(n, channels, h, w) to (n, features)."""
        return super().forward(_channels_last(images))


class ResidualBlock(nn.Module):
    """pool(phi(c(phi(c(phi(c(a))))) + shortcut(a))), c a normalised convolution 3 x 3, phi LeakyReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        convolutions: list[nn.Module] = []
        for size in (inputs, outputs, outputs):
            convolutions += [nn.Conv2d(size, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)]
            convolutions += [nn.LeakyReLU(0.1)]
        self.convolutions: nn.Sequential = nn.Sequential(*convolutions[:-1])
        self.shortcut: nn.Sequential = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.end: nn.Sequential = nn.Sequential(nn.LeakyReLU(0.1), nn.MaxPool2d(2))

    def forward(self, images: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, outputs, h // 2, w // 2)."""
        return self.end(self.convolutions(images) + self.shortcut(images))


def _check_image_size(size: int) -> None:
    if size < 16:
        raise InvalidInputError(f"image_size must be at least 16, as each of four blocks halves it, got {size}")


def _channels_last(images: Tensor) -> Tensor:
    """The same images with channels last in memory, which is twice as fast on a CPU."""
    images = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    count, channels, height, width = images.shape
    if channels > 1:
        return images
    # One channel has both layouts at once; layers take it for the usual one unless its strides say otherwise.
    return images.as_strided((count, 1, height, width), (height * width, 1, width, 1))
