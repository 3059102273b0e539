"""The convolutional networks: one for CIFAR-10, and a tiny one for the embedded digits.

    cifar_network()             # conv-0, conv-1, conv-2 and output, with norms, ReLU and pooling between them
    digits_network()            # conv-0, conv-1 and output

Norms are group norms, which know nothing but the image at hand: batch norms would keep means of the images they saw
last, which no slot has added and no muting can take back.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

OUTPUT = "output"
_CHANNELS_PER_GROUP = 16


def cifar_network() -> nn.Sequential:
    """Make a network for colours of 32 x 32 pixels; its first convolution has a position at every second pixel."""
    return _network(nn.Conv2d(3, 32, 4, stride=2, padding=1, bias=False), widths=(64, 128), places=1)


def digits_network() -> nn.Sequential:
    """Make a network for grey images of 8 x 8 pixels."""
    return _network(nn.Conv2d(1, 16, 3, padding=1, bias=False), widths=(32,), places=2)


def layers_asked(model: nn.Module) -> list[str]:
    """Return the names of convolutions and of the output: norms have nothing to attend with that is their own."""
    return [name for name, module in model.named_children() if isinstance(module, nn.Conv2d | nn.Linear)]


def describe(model: nn.Sequential) -> str:
    """Return a network in one line: its convolutions and its output."""
    parts = []
    for module in model:
        if isinstance(module, nn.Conv2d):
            height, width = module.kernel_size
            stride = f", stride {module.stride[0]}" if module.stride[0] > 1 else ""
            parts.append(f"{module.out_channels} channels of {height} x {width}{stride}")
        elif isinstance(module, nn.Linear):
            parts.append(f"{module.out_features} outputs")
    return f"{'; '.join(parts)}; with group norms, ReLU, pools of 2 x 2 and a mean before the outputs"


def _network(stem: nn.Conv2d, widths: Sequence[int], places: int) -> nn.Sequential:
    """Make a chain of convolutions, each later one followed by a pool, and a linear output.

    Args:
        stem: the first convolution.
        widths: channels of each later one, of 3 x 3 pixels.
        places: how many, along each side, the last map is averaged to.
    """
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    channels = stem.out_channels
    modules |= {"conv-0": stem, "norm-0": _norm(channels), "relu-0": nn.ReLU()}
    for number, width in enumerate(widths, start=1):
        modules |= {
            f"conv-{number}": nn.Conv2d(channels, width, 3, padding=1, bias=False),
            f"norm-{number}": _norm(width),
            f"relu-{number}": nn.ReLU(),
            f"pool-{number}": nn.MaxPool2d(2),
        }
        channels = width
    modules |= {"mean": nn.AdaptiveAvgPool2d(places), "flat": nn.Flatten()}
    modules[OUTPUT] = nn.Linear(channels * places**2, 10)
    return nn.Sequential(modules)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(channels // _CHANNELS_PER_GROUP, channels)
