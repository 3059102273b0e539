"""The page in a real browser: what a person sees and does, against what the memory itself says."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import dualform
from dualform.experiments import demo
from dualform.experiments.language.training import MERGED
from dualform.viewer.api import Api
from dualform.viewer.opened_run import Companions, OpenedRun, open_run
from tests import recipe_runs
from tests.cli.conftest import call
from tests.viewer import runs
from tests.viewer.browser import PATIENCE, launched, opened, part
from tests.viewer.served import served

pytestmark = pytest.mark.browser

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "digits"
    demo.train(path, steps=150)
    return path


@pytest.fixture(scope="module")
def opened_run(digits: Path) -> OpenedRun:
    return open_run(digits)


@pytest.fixture(scope="module")
def site(opened_run: OpenedRun) -> Iterator[str]:
    yield from address(opened_run)


@pytest.fixture(scope="module")
def two_tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from address(open_run(runs.pictures(tmp_path_factory.mktemp("run") / "pictures"), runs.PICTURES))


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from address(open_run(runs.language(tmp_path_factory.mktemp("run") / "language")))


def address(opened_run: OpenedRun) -> Iterator[str]:
    api = Api(opened_run)
    with served(api) as port:
        yield f"http://127.0.0.1:{port}/"


def said(opened_run: OpenedRun, model: torch.nn.Module, index: int) -> tuple[int, float]:
    """The prediction, and how sure the model is of it in per cent."""
    assert opened_run.inputs is not None
    with torch.no_grad():
        probabilities = torch.softmax(model(opened_run.inputs.row(index)), dim=1)[0]
    return int(probabilities.argmax()), 100 * float(probabilities.max())


def shown_per_cent(page: Page) -> float:
    text = part(page, "prediction").inner_text()
    found = re.search(r"(<|>)?([\d.]+)%", text)
    assert found is not None, text
    return float(found[2])


def test_home_tells_of_the_run_and_leads_to_inputs(browser: Browser, site: str, opened_run: OpenedRun) -> None:
    with opened(browser, site) as page:
        expect(part(page, "home-facts")).to_contain_text("150 steps of SGD")
        for words in ("hidden1", "64 → 128", "4,800", "id (int), label (int)"):
            expect(page.locator("main")).to_contain_text(words)
        expect(part(page, "certificate").first).to_contain_text("dual = primal to")
        assert opened_run.outputs is not None
        right = opened_run.outputs.right
        assert right is not None
        wrong = torch.nonzero(~right).flatten().tolist()
        expect(part(page, "thumb").first).to_have_attribute("data-index", str(wrong[0]))
        part(page, "filter-outcome").select_option("wrong")
        expect(part(page, "thumb")).to_have_count(min(len(wrong), 60))
        part(page, "filter-outcome").select_option(index=0)
        part(page, "search").fill("123")
        expect(part(page, "thumb")).to_have_count(1)
        part(page, "thumb", index=123).click()
        expect(part(page, "prediction")).to_contain_text("The model says")
        assert "input=123" in page.url


def test_a_spotlight_shows_what_the_memory_says(browser: Browser, site: str, opened_run: OpenedRun) -> None:
    assert opened_run.network is not None
    assert opened_run.inputs is not None
    with opened(browser, f"{site}#spotlight?input=7") as page:
        predicted, sure = said(opened_run, opened_run.network, 7)
        expect(part(page, "prediction")).to_contain_text(f"The model says {predicted}")
        assert shown_per_cent(page) == pytest.approx(sure, abs=0.1)
        top = opened_run.memory.attend(opened_run.network, opened_run.inputs.row(7))["output"].top(12, per="id")
        panel = part(page, "layer-panel", layer="output")
        for number in top["id"].tolist():
            expect(panel).to_contain_text(f"id {number}")
        expect(part(page, "top-image")).to_have_count(36)
        for chart in ("curves", "totals", "timeline", "scrubber"):
            expect(part(page, chart).locator("svg[role]").first).to_be_visible()
        part(page, "layer-panel", layer="output").get_by_text("single visits").click()
        slots = opened_run.memory.attend(opened_run.network, opened_run.inputs.row(7))["output"].top(12)
        expect(panel).to_contain_text(f"step {slots['step'][0]}")
        page.keyboard.press("1")
        expect(page).to_have_url(re.compile("layer=hidden1"))
        page.keyboard.press("ArrowRight")
        expect(page).not_to_have_url(re.compile("input=7(&|$)"))
        page.go_back()
        expect(page).to_have_url(re.compile("input=7(&|$)"))


def test_hovering_over_a_class_lights_it_everywhere(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}#spotlight?input=7") as page:
        expect(part(page, "totals").locator("svg[role]")).to_be_visible()
        expect(part(page, "curves").locator("svg[role]")).to_be_visible()
        part(page, "mute-class", **{"class": 4}).hover()
        for place in ("totals", "curves"):
            expect(part(page, place).locator(".lit").first).to_be_visible()


def test_a_drawing_is_seen_and_kept_in_the_address(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}#spotlight?input=7") as page:
        expect(part(page, "tray").locator(".dotted").first).to_be_visible()
        part(page, "draw").click()
        expect(part(page, "tray").locator(".dotted")).to_have_count(0)  # nothing is drawn yet: nothing is predicted
        pad = part(page, "drawpad").bounding_box()
        assert pad is not None
        stroke = [(0.5, 0.15), (0.5, 0.4), (0.5, 0.85)]  # a one
        places = [(pad["x"] + x * pad["width"], pad["y"] + y * pad["height"]) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=8)
        page.mouse.up()
        expect(part(page, "seen").locator("img")).to_be_visible()
        expect(part(page, "prediction")).to_contain_text("The model says")
        expect(page).to_have_url(re.compile(r"input=drawn:[\w-]+"))
        expect(part(page, "top-image")).to_have_count(36)
        page.wait_for_timeout(500)  # the address is written a moment after the pen
        words, url = part(page, "prediction").inner_text(), page.url
    with opened(browser, url) as page:
        expect(part(page, "prediction")).to_have_text(re.compile(r"\s*".join(map(re.escape, words.split()))))
        expect(part(page, "seen").locator("img")).to_be_visible()


def test_muting_a_class_is_memory_without(browser: Browser, site: str, opened_run: OpenedRun) -> None:
    assert opened_run.network is not None
    predicted, _ = said(opened_run, opened_run.network, 7)
    without, sure = said(opened_run, opened_run.memory.without(label=predicted).model(opened_run.network), 7)
    assert without != predicted
    with opened(browser, f"{site}#spotlight?input=7") as page:
        part(page, "mute-class", **{"class": predicted}).click()
        tray = part(page, "tray-before-after")
        expect(tray).to_contain_text(f"Without them the model says {without}")
        found = re.search(r"\(>?([\d.]+)%\)", tray.inner_text())
        assert found is not None
        assert float(found[1]) == pytest.approx(sure, abs=0.2)
        expect(part(page, "honest")).to_contain_text("Recorded contributions removed, not retrained.")
        count = 150 * 32 - opened_run.memory.without(label=predicted).slots("output")
        expect(part(page, "honest")).to_contain_text(f"{count:,} of 4,800 slots muted in each layer")
        expect(page).to_have_url(re.compile(f"mute=label:{predicted}"))
        part(page, "top-image").first.click()
        expect(part(page, "chip")).to_have_count(2)
        part(page, "undo-mute").click()
        expect(part(page, "chip")).to_have_count(1)
        part(page, "clear-mute").click()
        expect(tray).to_be_hidden()


def test_training_again_without_what_is_muted(browser: Browser, tmp_path: Path, held: threading.Event) -> None:
    path = recipe_runs.digits(tmp_path / "digits")
    opened_run = open_run(path, Companions(model=recipe_runs.MODEL, recipe=recipe_runs.RECIPE))
    for site in address(opened_run):
        with opened(browser, f"{site}#spotlight?input=7&mute=label:9") as page:
            tray = part(page, "tray-before-after")
            expect(part(page, "train-time")).to_contain_text("about 1 s")
            part(page, "train").click()
            expect(part(page, "train-again")).to_contain_text(f"20 of {recipe_runs.STEPS} steps")
            page.goto(f"{site}#spotlight?input=8&mute=label:8")  # which has to wait for the other
            expect(part(page, "train-again")).to_contain_text("Training again without class 9")
            expect(part(page, "prediction")).to_contain_text("The model says")
            part(page, "train-stop").click()
            held.set()
            expect(part(page, "train")).to_be_enabled()
            page.goto(f"{site}#spotlight?input=7&mute=label:9")
            part(page, "train").click()
            expect(part(page, "retrained")).to_contain_text(f"Trained again: {recipe_runs.STEPS} steps in")
            again = dualform.load(path, recipe=recipe_runs.recipe()).retrain(without={"label": 9})
            predicted, sure = said(opened_run, again, 7)
            expect(tray).to_contain_text(f"trained again without them, {predicted} (")
            found = re.search(r"trained again without them, \d+ \(>?([\d.]+)%\)", tray.inner_text())
            assert found is not None
            assert float(found[1]) == pytest.approx(sure, abs=0.1)
            expect(tray.locator("rect.again").first).to_be_attached()
            expect(part(page, "honest")).to_contain_text("training again is the true answer")
            page.goto(f"{site}#spotlight?input=8&mute=label:9")  # what was trained is asked about other inputs at once
            expect(tray).to_contain_text(f"trained again without them, {said(opened_run, again, 8)[0]} (")
            page.goto(f"{site}#spotlight?input=7&mute=steps:5-20")
            expect(part(page, "train-again")).to_contain_text("is no set of examples")
            expect(part(page, "train")).to_have_count(0)


def test_without_a_recipe_the_tray_says_how_to_train_again(browser: Browser, tmp_path: Path) -> None:
    path = recipe_runs.digits(tmp_path / "digits", steps=10)
    for site in address(open_run(path, Companions(model=recipe_runs.MODEL))):
        with opened(browser, f"{site}#spotlight?input=7&mute=label:9") as page:
            expect(part(page, "train-again")).to_contain_text("pass --recipe PACKAGE:FACTORY")
            expect(part(page, "train")).to_have_count(0)
    out = tmp_path / "report.html"
    assert call("report", path, "-o", out, "--model", recipe_runs.MODEL, "--index", "3").exit_code == 0
    with opened(browser, out.as_uri()) as page:
        part(page, "thumb", index=3).click()
        part(page, "mute-class", **{"class": 0}).click()
        expect(part(page, "tray-before-after")).to_contain_text("Without them the model")
        expect(part(page, "train-again")).to_be_hidden()


def test_a_prompt_is_asked_of_the_model_that_was_trained_again(browser: Browser, tmp_path: Path) -> None:
    path = recipe_runs.language(tmp_path / "language")
    for site in address(open_run(path, Companions(recipe=recipe_runs.LANGUAGE_RECIPE))):
        with opened(browser, f"{site}#prompt?prompt=the%20wolf&mute=id:0,8") as page:
            part(page, "train").click()
            expect(part(page, "retrained")).to_contain_text("Trained again: 40 steps in")
            expect(part(page, "prompt-tray").locator(".changes .bar.again")).to_have_count(10)
            page.goto(f"{site}#prompt?prompt=the%20wolf&mute=positions:0-50")
            expect(part(page, "train-again")).to_contain_text("is no set of examples")


def test_a_stretch_of_time_is_brushed_and_muted(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}#spotlight?input=7", size={"width": 1366, "height": 1400}) as page:
        chart = part(page, "timeline").locator("svg[role]").first
        expect(chart).to_be_visible()
        box = chart.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"])
        page.mouse.down()
        page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.5 * box["height"], steps=6)
        page.mouse.up()
        part(page, "mute-stretch").click()
        expect(part(page, "tray-before-after")).to_contain_text("Without them the model")
        expect(page).to_have_url(re.compile(r"mute=steps:\d+-\d+"))


def test_the_model_as_it_was_at_any_step(browser: Browser, site: str, opened_run: OpenedRun) -> None:
    assert opened_run.network is not None
    with opened(browser, f"{site}#spotlight?input=7") as page:
        for step in (0, 37):
            part(page, "scrubber-step").fill(str(step))
            part(page, "scrubber-step").press("Enter")
            predicted, sure = said(opened_run, opened_run.memory.until(step=step).model(opened_run.network), 7)
            expect(part(page, "step-banner")).to_contain_text(f"as it was after step {step}")
            expect(part(page, "step-banner")).to_contain_text(f"{predicted} (")
            expect(part(page, "prediction")).to_contain_text(f"The model says {predicted}")
            assert shown_per_cent(page) == pytest.approx(sure, abs=0.1)
        part(page, "to-end").click()
        expect(part(page, "step-banner")).to_be_hidden()


def test_charts_mark_what_the_finished_model_says(browser: Browser, site: str, opened_run: OpenedRun) -> None:
    assert opened_run.network is not None
    predicted, _ = said(opened_run, opened_run.network, 7)
    before, _ = said(opened_run, opened_run.memory.until(step=0).model(opened_run.network), 7)
    assert before != predicted
    with opened(browser, f"{site}#spotlight?input=7&step=0") as page:
        expect(part(page, "prediction")).to_contain_text(f"The model says {before}")
        for chart, name in {"totals": ".bar:is(.predicted, .both) .name", "curves": ".curve.strong .end"}.items():
            expect(part(page, chart).locator(name).filter(has_text=str(predicted))).to_be_visible()
        expect(part(page, "mute-class", **{"class": predicted}).locator(".dotted")).to_be_visible()


def test_an_address_restores_what_was_seen(browser: Browser, site: str) -> None:
    state = "#spotlight?input=11&layer=hidden2&mute=label:3;steps:10-40&step=75"
    seen = []
    for _ in range(2):
        with opened(browser, site + state) as page:
            expect(part(page, "step-banner")).to_contain_text("after step 75")
            expect(part(page, "tray-before-after")).to_contain_text("Without them the model")
            expect(part(page, "chip")).to_have_count(2)
            expect(part(page, "prediction")).to_contain_text("The model says")
            seen.append((part(page, "prediction").inner_text(), part(page, "honest").inner_text()))
            assert page.url.endswith(state)
    assert seen[0] == seen[1]


def test_tasks_have_a_button_each_and_accuracies_over_time(browser: Browser, two_tasks: str) -> None:
    with opened(browser, two_tasks) as page:
        expect(page.get_by_text("Accuracy over training time")).to_be_visible()
        expect(page.locator("main svg[role]").first).to_be_visible()
        expect(part(page, "home-facts")).to_contain_text("triangles")
        part(page, "thumb", index=8).click()
        part(page, "mute-task", task="stripes").click()
        expect(part(page, "honest")).to_contain_text("60 of 120 slots muted in each layer")
        page.goto(f"{two_tasks}#spotlight?input=8&mute=label:1")
        expect(part(page, "chip")).to_contain_text("label 1 of every task")


def test_a_language_model_has_passages_and_documents_to_mute(browser: Browser, language: str) -> None:
    with opened(browser, language) as page:
        page.goto(f"{language}#prompt?prompt=the%20wolf")
        expect(part(page, "token")).to_have_count(8)
        expect(page.get_by_role("button", name="Suspects")).to_have_count(0)
        expect(part(page, "passage").first).to_be_visible()
        expect(part(page, "mark").first).to_be_visible()
        part(page, "token", token=2).click()
        expect(page).to_have_url(re.compile("token=2"))
        expect(part(page, "expected")).to_contain_text("%")
        part(page, "mute-document").first.click()
        expect(part(page, "prompt-tray")).to_contain_text("Recorded contributions removed, not retrained.")
        expect(page).to_have_url(re.compile(r"mute=positions:\d+-\d+"))


def test_a_merged_run_says_that_nothing_can_be_muted(browser: Browser, tmp_path: Path) -> None:
    for site in address(open_run(runs.language(tmp_path / "merged", MERGED))):
        with opened(browser, f"{site}#prompt?prompt=the%20wolf") as page:
            expect(part(page, "passage").first).to_be_visible()
            expect(page.locator("main")).to_contain_text("nothing can be muted")
            expect(part(page, "certificate").first).to_have_text("keys only: no certificate")


def test_a_run_of_numbers_alone_says_what_is_missing(browser: Browser, tmp_path: Path) -> None:
    path = runs.rows(tmp_path / "rows")
    for site in address(open_run(path)):
        with opened(browser, site) as page:
            expect(page.locator("main")).to_contain_text("pass --model PACKAGE:FACTORY")
    for site in address(open_run(path, Companions(model=runs.ROWS.model, inputs=path / "mine.npy"))):
        with opened(browser, f"{site}#spotlight?input=1") as page:
            expect(part(page, "layer-panel", layer="0")).to_contain_text("sensor")
            expect(page.locator("main")).to_contain_text("slots have no classes")
    np.save(path / "pairs.npy", np.ones((2, 3, 6), np.float32))  # for which the model has no probabilities
    for site in address(open_run(path, Companions(model=runs.ROWS.model, inputs=path / "pairs.npy"))):
        with opened(browser, f"{site}#spotlight?input=1") as page:
            expect(part(page, "layer-panel", layer="0")).to_contain_text("sensor")
            expect(page.locator("main")).to_contain_text("models with an output for each class")


@pytest.mark.parametrize("dark", [False, True])
def test_a_report_needs_no_server(browser: Browser, digits: Path, tmp_path: Path, dark: bool) -> None:
    out = tmp_path / "report.html"
    done = call("report", digits, "-o", out, "--index", "3", "--index", "8")
    assert done.exit_code == 0, done.output
    with opened(browser, out.as_uri(), dark) as page:
        expect(part(page, "certificate").first).to_contain_text("dual = primal to")
        expect(part(page, "thumb")).to_have_count(2)
        expect(page.get_by_role("button", name="Suspects")).to_have_count(0)  # which nobody is there to answer
        part(page, "thumb", index=8).click()
        expect(part(page, "prediction")).to_contain_text("The model says")
        expect(part(page, "top-image")).to_have_count(36)
        expect(part(page, "curves").locator("svg[role]")).to_be_visible()
        part(page, "mute-class", **{"class": 0}).click()
        expect(part(page, "tray-before-after")).to_contain_text("Without them the model")


def test_a_report_of_a_language_model(browser: Browser, tmp_path: Path) -> None:
    path = runs.language(tmp_path / "language")
    out = tmp_path / "report.html"
    done = call("report", path, "-o", out, "--prompt", "the wolf", "--prompt", "a </script> lamb"[:1])
    assert done.exit_code == 0, done.output
    with opened(browser, out.as_uri()) as page:
        page.goto(f"{out.as_uri()}#prompt?prompt=the%20wolf")
        expect(part(page, "passage").first).to_be_visible()


def test_panels_are_saved_as_files(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}#spotlight?input=7") as page:
        panel = part(page, "totals")
        expect(panel.locator("svg[role]")).to_be_visible()
        for kind in ("SVG", "PNG", "CSV", "JSON"):
            panel.locator('summary[aria-label="Save"]').click()
            with page.expect_download() as download:
                panel.get_by_text(f"({kind})").click()
            path = download.value.path()
            assert path.stat().st_size > 100
            assert download.value.suggested_filename.endswith(f".{kind.lower()}")


def test_a_server_that_went_away_is_noticed(browser: Browser, tmp_path: Path) -> None:
    api = Api(open_run(runs.pictures(tmp_path / "run"), runs.PICTURES))
    context = browser.new_context()
    page = context.new_page()  # not watched: it will say that requests failed
    with served(api) as port:
        page.goto(f"http://127.0.0.1:{port}/#spotlight?input=1")
        expect(part(page, "prediction")).to_contain_text("The model says")
    part(page, "mute-class", **{"class": 1}).click()
    expect(part(page, "lost")).to_contain_text("Start it again: dualform view")
    context.close()
