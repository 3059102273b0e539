"""The language reference that comes with Python, as `help("assert")` shows it: some 370,000 characters, no download.

    corpus = load()
    corpus.train.titles[0]                  # (0, 'The "assert" statement')
    corpus.test.text                        # every tenth topic, by length

The text is that of the Python in use: another version of it has other words at other positions.
"""

import re
from collections.abc import Mapping, Sequence

from dualform.datasets.corpus import ALTERNATIVE, Corpus, Part
from dualform.errors import DataError

NAME = "topics"
TEST_EVERY = 10  # one topic in so many is for testing
_UNDERLINE = re.compile(r'^([*=~^"-])\1+$', re.MULTILINE)
_BETWEEN = "\n\n\n"


def load() -> Corpus:
    """Load all topics in the order of their names; the title of each is its first line."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DataError(f"this Python was installed without pydoc_data.topics; {ALTERNATIVE}") from error
    # One topic in four is a section of a longer one: it would be trained on twice, or trained on and tested with.
    kept: dict[str, str] = {}
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        # Without the lines below headings, which depend on how deep in a topic a section is.
        plain = _UNDERLINE.sub("", topics[name].strip())
        body = plain.partition("\n")[2].strip()
        if not any(body in longer for longer in kept.values()):
            kept[name] = plain
    by_length = list(kept)
    # By length, for lengths differ: any tenth of the names may hold a hundredth of the text, or a quarter.
    held_out = set(by_length[TEST_EVERY // 2 :: TEST_EVERY])
    train, test = (sorted(names) for names in (set(by_length) - held_out, held_out))
    return Corpus(NAME, train=_joined(topics, train), test=_joined(topics, test))


def _joined(topics: Mapping[str, str], names: Sequence[str]) -> Part:
    text, titles = "", []
    for name in names:
        topic = topics[name].strip()
        titles.append((len(text), topic.partition("\n")[0]))
        text += topic + _BETWEEN
    return Part(text, tuple(titles))
