"""Runs of convolutional networks and Transformers: every answer is what its Python makes, and no panel is blank."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page, expect
from torch.testing import assert_close

from dualform.viewer.api import Api
from dualform.viewer.opened_run import Companions, open_run
from tests.viewer.browser import PATIENCE, launched, opened, part
from tests.viewer.runs import asked
from tests.viewer.served import served
from tests.viewer.test_answers import prepared, run_python
from tests.viewer.whole_models import CONVOLUTIONS, GPT, TRANSFORMER, convolutions, gpt, transformer

expect.set_options(timeout=PATIENCE)

Fixture = Iterator[Api]
PROMPT = {"prompt": "the wolf"}


def made(make: Callable[[Path], Path], named: Companions, factory: pytest.TempPathFactory) -> Fixture:
    yield from prepared(make(factory.mktemp("run") / make.__name__), named)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    yield from made(convolutions, CONVOLUTIONS, tmp_path_factory)


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    yield from made(transformer, TRANSFORMER, tmp_path_factory)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    yield from made(gpt, GPT, tmp_path_factory)


# Answers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["images", "sequences", "text"])
def test_all_jobs_are_done_and_the_run_is_whole(name: str, request: pytest.FixtureRequest) -> None:
    api: Api = request.getfixturevalue(name)
    jobs = asked(api, "jobs", {})
    assert [job["failed"] for job in jobs["jobs"]] == [None] * 4
    assert jobs["certificate"]["ok"]
    run = asked(api, "run", {})
    assert run["coverage"]["attributed"] == 1
    assert "spotlight" not in run["cannot"]
    assert "mute" not in run["cannot"]
    assert run["missing"] == []


@pytest.mark.slow
def test_the_spotlight_of_a_convolution_is_that_of_the_whole_image(images: Api) -> None:
    answer = asked(images, "spotlight", {"input": {"index": 3}, "layer": "4", "per": "id"})
    assert answer["note"] == "summed over the 16 rows this layer has for the input."
    assert run_python(answer)["top"]["id"].tolist() == [one["tags"]["id"] for one in answer["top"]]
    assert images.run.network is not None
    assert images.run.inputs is not None
    spotlight = images.run.memory.attend(images.run.network, images.run.inputs.row(3))
    expected = spotlight["4"].per_input().top(12, per="id")
    np.testing.assert_allclose([one["score"] for one in answer["top"]], expected["score"], rtol=1e-4)
    assert all(one["pixels"] for one in answer["top"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "about", "mute"),
    [
        ("images", {"index": 4}, {"label": [1]}),
        ("sequences", {"index": 4}, {"label": [1]}),
        ("text", PROMPT, {"positions": [0, 60]}),
    ],
)
def test_what_is_said_without_some_slots_is_what_its_python_says(
    name: str, about: dict[str, Any], mute: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    api: Api = request.getfixturevalue(name)
    answer = asked(api, "mute", {"input": about, "mute": [mute]})
    probabilities = run_python(answer)["probabilities"][0]
    if name != "text":
        assert_close(torch.tensor(answer["after"]["probabilities"]), probabilities, rtol=1e-3, atol=1e-4)
        return
    assert api.run.text is not None
    for one in answer["after"]["expected"]:
        expected = float(probabilities[api.run.text.vocabulary.index(one["token"])])
        assert one["probability"] == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["wte", "block.self_attn.in_proj", "block.norm1", "head"])
def test_a_transformer_has_passages(text: Api, layer: str) -> None:
    answer = asked(text, "passages", {"input": PROMPT, "layer": layer, "most": 3})
    assert answer["passages"]
    assert [list(one.tokens) for one in run_python(answer)["passages"]] == [o["tokens"] for o in answer["passages"]]


# The page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


@contextmanager
def page_of(browser: Browser, api: Api, state: str) -> Iterator[Page]:
    """The page of a run; the same as the answers are from, prepared."""
    copy = Api(open_run(api.run.memory.path, api.run.companions), prepare=False)
    copy.jobs.run()
    with served(copy) as port, opened(browser, f"http://127.0.0.1:{port}/{state}") as page:
        yield page


def check_no_table_is_wider_than_its_panel(page: Page) -> None:
    too_wide = """tables => tables.filter(table => table.getBoundingClientRect().right >
        table.closest(".panel").getBoundingClientRect().right).length"""
    assert page.locator(".panel table").evaluate_all(too_wide) == 0


@pytest.mark.browser
def test_the_page_of_a_convolutional_network(browser: Browser, images: Api) -> None:
    with page_of(browser, images, "#spotlight?input=3&mute=label:1") as page:
        expect(part(page, "prediction")).to_contain_text("The model says")
        expect(part(page, "top-image")).to_have_count(5 * 12)
        expect(part(page, "totals").locator(".bar")).to_have_count(3)
        expect(part(page, "timeline").locator("svg[role]").first).to_be_visible()
        expect(part(page, "tray-before-after")).to_contain_text("Without them the model")


@pytest.mark.browser
def test_the_pages_of_a_transformer(browser: Browser, sequences: Api) -> None:
    with page_of(browser, sequences, "#home") as page:
        expect(part(page, "certificate-detail")).to_contain_text("dual = primal")
        expect(page.get_by_text("encoder.layers.1.self_attn.out_proj").nth(1)).to_be_visible()
        check_no_table_is_wider_than_its_panel(page)
    with page_of(browser, sequences, "#spotlight?input=3&mute=label:1") as page:
        expect(part(page, "prediction")).to_contain_text("The model says")
        expect(page.locator("table.slots")).to_have_count(15)
        assert all(
            count > 0 for count in page.locator("table.slots").evaluate_all("t => t.map(x => x.rows.length - 1)")
        )
        expect(part(page, "tray-before-after")).to_contain_text("Without them the model")


@pytest.mark.browser
def test_the_page_of_a_language_model_that_is_a_transformer(browser: Browser, text: Api) -> None:
    with page_of(browser, text, "#prompt?prompt=the%20wolf&mute=positions:0-50") as page:
        expect(part(page, "passage").first).to_be_visible()
        expect(part(page, "expected")).to_contain_text("%")
        expect(part(page, "honest")).to_contain_text("slots muted, over all layers")
        page.get_by_role("button", name="block.self_attn.in_proj").click()
        expect(part(page, "mark").first).to_be_visible()


@pytest.mark.browser
def test_a_run_without_its_model_says_what_to_pass(browser: Browser, images: Api) -> None:
    with served(Api(open_run(images.run.memory.path))) as port, opened(browser, f"http://127.0.0.1:{port}/") as page:
        expect(page.get_by_text("pass --model PACKAGE:FACTORY").first).to_be_visible()
        part(page, "thumb").first.click()
        expect(page.locator("main")).to_contain_text("this needs the model")
