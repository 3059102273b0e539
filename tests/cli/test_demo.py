"""`demo`: as long as it says."""

import inspect

from dualform.cli.demo import demo as command
from dualform.experiments import demo


def test_the_demo_is_as_long_as_it_says() -> None:
    assert inspect.signature(command).parameters["steps"].default == demo.STEPS
