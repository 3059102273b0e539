"""`dualform attend --prompt`: show passages of the training text behind what a language model expects next."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualform.cli.output import print_json
from dualform.companions import own_file

if TYPE_CHECKING:
    from torch import nn

    from dualform.memory import Memory


def answer_prompts(
    memory: "Memory", network: "nn.Module", prompts: Sequence[str], layers: Sequence[str] | None, most: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Find the passages behind prompts, and print them."""
    from dualform import terminal
    from dualform.experiments.language.answers import ask
    from dualform.text import Text, to_plain, to_rich

    path = own_file(
        memory, "text", "save the training text beside it with dualform.text.Text.save, and name it in about"
    )
    text = Text.load(path)
    answers = [ask(memory, network, text, prompt, most, layers) for prompt in prompts]
    if as_json:
        print_json({"run": str(memory.path), "prompts": [answer.to_dict() for answer in answers]})
        return
    out = terminal.console()
    for answer in answers:
        out.print(to_rich(answer.prompt) if out.color_system else to_plain(answer.prompt), style="bold")
        likely = ", ".join(f"{expected.token!r} {expected.probability:.0%}" for expected in answer.expected)
        out.print(f"expected next: {likely}", "")
        for name, layer in answer.layers.items():
            title = f"{name}: attention summed over all visits to a position"
            out.print(terminal.passages(out, layer.summed, title), "")
            if layer.single is not None:
                out.print(terminal.passages(out, layer.single, f"{name}: attention to single updates"), "")
