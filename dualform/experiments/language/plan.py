"""The paper's language models and prompts, and what a user may choose."""

from dataclasses import dataclass, replace
from pathlib import Path

from dualform.datasets import tokens
from dualform.datasets.corpus import Corpus
from dualform.experiments.language.training import LanguageHyperparameters
from dualform.experiments.loops import SLOTS
from dualform.text import Text

EMBEDDED = "topics"  # needs no download
_TOKENS = {"characters": tokens.characters, "words": tokens.words}


@dataclass(frozen=True)
class PromptQuery:
    """A prompt, whose last token is the query."""

    prompt: str
    table: str = ""  # of the paper, if the prompt is from there
    paper_passages: tuple[str, ...] = ()  # words of the three passages in that table


@dataclass(frozen=True)
class LanguageExperiment:
    """A language model: its tokens, how it is trained on which text, and prompts."""

    name: str
    title: str
    level: str  # characters | words
    hparams: dict[str, LanguageHyperparameters]  # by data set; any other text is trained on as the embedded one
    paper: LanguageHyperparameters
    queries: dict[str, tuple[PromptQuery, ...]]

    def texts(self, corpus: Corpus) -> tuple[Text, Text]:
        """Split a corpus into tokens. Returns the training and the test text."""
        return _TOKENS[self.level](corpus)


_CHARACTERS = LanguageHyperparameters(
    embedding=64, hidden=256, dropout=0.0, lr=3e-3, clip=1.0, batch=64, span=100, steps=400
)
_WORDS = LanguageHyperparameters(
    embedding=200, hidden=200, dropout=0.5, lr=3e-3, clip=1.0, batch=32, span=35, steps=600
)

LANGUAGE_EXPERIMENTS = {
    "charlm": LanguageExperiment(
        "charlm", "A character-level language model", "characters",
        {EMBEDDED: _CHARACTERS, "aesop": replace(_CHARACTERS, hidden=512, lr=2e-3, steps=800)},
        replace(_CHARACTERS, hidden=1024, lr=1e-3, steps=5000),
        {
            "aesop": (
                PromptQuery(
                    "and the Wolf was glad\nto take himself off as fast as h", "2",  # the paper's goes on: is legs
                    ("running as fast as he could", "eating them as fast as he could", "for him as fast as he could"),
                ),
                PromptQuery(
                    "The\nWolf stood high up the stream and the Lamb a little d", "3",
                    ("in a single day", "the bark of but a single dog", "a single drop to refresh it"),
                ),
                PromptQuery(
                    "The Squirrel takes a look at them—he can do no more. At ", "4",
                    ("At most it can", "and at times play with him", "and at last one by one"),
                ),
            ),
            EMBEDDED: (
                PromptQuery("If no expressions are present, \"raise\" re-raises the exc"),
                PromptQuery("This method is called when the instance is ab"),
                PromptQuery("the value of the expression is the same as the value of the "),
            ),
        },
    ),
    "wordlm": LanguageExperiment(
        "wordlm", "A word-level language model", "words",
        {EMBEDDED: _WORDS, "wikitext-2": replace(_WORDS, batch=128, steps=600)},
        replace(_WORDS, batch=128, steps=10_000),
        {
            "wikitext-2": (
                PromptQuery(
                    "her painting was printed opposite that of <unk> Tommy Watson , who was by this time famous , "
                    "particularly for his contribution", "5",
                    ("for his contribution to the film industry", "for his contribution as consultant",
                     "for his contribution to the program"),
                ),
                PromptQuery(
                    "the first large , ocean @-@ going ironclad to <unk> with masts . Her principal", "6",
                    ("Her main battery guns", "Her secondary armament", "Her primary offensive weapon"),
                ),
                PromptQuery(
                    'IGN \'s Matt <unk> gave " The <unk> " a score of 9 @.@ 4 out of 10 , describing it as', "7",
                    ('describing it as " a genuinely creepy', 'describing it as a " gorgeously sparse',
                     "describing it as \" ' Alien '"),
                ),
            ),
            EMBEDDED: (
                PromptQuery("This method is called when the instance is"),
                PromptQuery("The following example shows"),
                PromptQuery("If the expression is not"),
            ),
        },
    ),
}  # fmt: skip


@dataclass(frozen=True)
class LanguageOptions:
    """What a user may choose about a language model."""

    dataset: str = EMBEDDED
    data: Path | None = None  # where the data are, if not in one of the usual places
    text: Path | None = None  # a file of the user's own, instead of a data set
    prompts: tuple[str, ...] = ()  # instead of the paper's
    hidden: int | None = None
    steps: int | None = None
    merge: bool | None = None  # None: if every visit would take more than a few gigabytes
    values: bool = False  # keep them too: several times the bytes, and the run can be certified and muted
    keep: str = SLOTS  # what is stored of the training: slots, or snapshots to make them again from
    keep_run: bool = False
    seed: int = 0


def hyperparameters_for(experiment: LanguageExperiment, options: LanguageOptions) -> LanguageHyperparameters:
    """Return the text's default hyperparameters, with those that the user has chosen."""
    dataset = options.dataset if options.text is None and options.dataset in experiment.hparams else EMBEDDED
    hparams = experiment.hparams[dataset]
    return replace(hparams, hidden=options.hidden or hparams.hidden, steps=options.steps or hparams.steps)
