"""Suspect labels in the viewer: the request says what `memory.suspects` says, and the page shows it."""

import csv
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from playwright.sync_api import Browser, Page, expect

import dualform
from dualform.datasets.digits import CLASS_NAMES
from dualform.errors import Refused
from dualform.viewer.api import Api
from dualform.viewer.opened_run import Companions, open_run
from tests import recipe_runs
from tests.viewer import runs
from tests.viewer.browser import PATIENCE, launched, opened, part
from tests.viewer.runs import asked
from tests.viewer.served import served, soon
from tests.viewer.test_answers import run_python
from tests.viewer.whole_models import TRANSFORMER, transformer

expect.set_options(timeout=PATIENCE)

DIGITS = Companions(model=recipe_runs.MODEL)
NARROW = {"width": 390, "height": 844}


def opened_api(path: Path, named: Companions | None = None) -> Api:
    """Answers without anything prepared: suspects need nothing of that."""
    return Api(open_run(path, named), prepare=False)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Api:
    return opened_api(runs.pictures(tmp_path_factory.mktemp("run") / "pictures"), runs.PICTURES)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recipe_runs.digits(tmp_path_factory.mktemp("run") / "digits")


# Answers


@pytest.mark.slow
def test_they_are_those_of_the_memory(pictures: Api) -> None:
    answer = asked(pictures, "suspects", {"count": 500})
    expected = list(pictures.run.memory.suspects(500).rows())
    assert answer["total"] == len(expected) > 30
    shown = pictures.run.pictures
    assert shown is not None
    for row, one in zip(expected, answer["suspects"], strict=True):
        assert {name: one[name] for name in row if name != "task"} == {n: v for n, v in row.items() if n != "task"}
        assert (one["task"], one["tags"]) == (row["task"], {"task": row["task"]})
        assert one["label"] == one["id"] % 3  # as the pictures are made
        assert one["class"] == list(runs.TASKS).index(row["task"]) * 3 + row["label"]
        assert one["pixels"] == shown.training(row["id"]) is not None
    assert [one["score"] for one in answer["suspects"]] == sorted((row["score"] for row in expected), reverse=True)
    assert "suspects" not in asked(pictures, "run", {})["cannot"]


@pytest.mark.slow
def test_some_of_them_and_the_python_that_makes_them(pictures: Api) -> None:
    every = asked(pictures, "suspects", {"count": 500})["suspects"]
    for start, count in ((0, 4), (7, 5), (len(every) - 2, 60), (len(every), 1)):
        answer = asked(pictures, "suspects", {"start": start, "count": count})
        assert answer["suspects"] == every[start : start + count]
        assert answer["total"] == len(every)
        made = run_python(answer)["suspects"]["id"].tolist()[start:]
        assert made == [one["id"] for one in answer["suspects"]]


@pytest.mark.slow
def test_visits_of_no_single_example_are_left_out(tmp_path: Path) -> None:
    """Against a loop over the tags that the pictures are forged to have."""
    whole = dualform.load(runs.pictures(tmp_path / "whole")).suspects(500)
    api = opened_api(runs.untagged(tmp_path / "untagged"), runs.PICTURES)
    torch.manual_seed(0)
    runs.network()
    torch.randint(0, 17, (60, 20), dtype=torch.uint8)
    visits: dict[int, int] = {}
    for step in range(24):
        ids = (torch.randint(30, (5,)) + 30 * (step // 12)).tolist()
        for number in ids[2:] if step >= 6 else []:  # the first two slots of each step have no id
            visits[number] = visits.get(number, 0) + 1
    answer = asked(api, "suspects", {"count": 500})
    assert {one["id"]: one["visits"] for one in answer["suspects"]} == visits
    scores = dict(zip(whole["id"].tolist(), whole["score"].tolist(), strict=True))
    times = dict(zip(whole["id"].tolist(), whole["visits"].tolist(), strict=True))
    unchanged = [one for one in answer["suspects"] if one["visits"] == times[one["id"]]]
    assert len(unchanged) > 10
    assert [one["score"] for one in unchanged] == pytest.approx([scores[one["id"]] for one in unchanged])


def squares(path: Path) -> Path:
    """Examples with ids, whose loss is no cross-entropy."""
    torch.manual_seed(0)
    model = runs.network()
    optimizer = runs.sgd(model.parameters())
    with dualform.record(model, optimizer, path) as recorder:
        for _ in range(4):
            recorder.tag(id=torch.arange(5))
            F.mse_loss(model(torch.randn(5, 20)), torch.randn(5, 3)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: runs.pictures(path, values=False), "this run holds keys only"),
        (runs.rows, "record with recorder.tag(id=...)"),
        (runs.language, "suspects are for classifiers"),
    ],
)
def test_where_there_are_none_to_tell_the_run_says_why(tmp_path: Path, make: Any, reason: str) -> None:
    api = opened_api(make(tmp_path / "run"))
    assert reason in asked(api, "run", {})["cannot"]["suspects"]
    with pytest.raises(Refused, match=re.escape(reason)):
        asked(api, "suspects", {})
    assert asked(api, "jobs", {})["jobs"][-1]["name"] != "suspects"


@pytest.mark.slow
def test_whether_losses_are_cross_entropies_is_known_once_asked(tmp_path: Path) -> None:
    api = opened_api(squares(tmp_path / "run"))
    assert "suspects" not in asked(api, "run", {})["cannot"]
    for _ in range(2):
        with pytest.raises(Refused, match="are not those of a softmax cross-entropy") as refused:
            asked(api, "suspects", {})
        assert refused.value.status == 422
    assert "are not those of a softmax" in asked(api, "run", {})["cannot"]["suspects"]


@pytest.mark.slow
def test_where_slots_are_made_again_it_is_a_job(tmp_path: Path, held: threading.Event) -> None:
    path = recipe_runs.digits(tmp_path / "digits", keep="snapshots", dtype="float32")
    api = opened_api(path, Companions(model=recipe_runs.MODEL, recipe=recipe_runs.RECIPE))
    asks = [api.submit("suspects", {"count": count}) for count in (3, 4)]
    for future in asks:
        with pytest.raises(Refused) as refused:
            future.result()
        assert (refused.value.status, refused.value.job) == (503, "suspects")
    assert asked(api, "jobs", {})["jobs"][-1]["name"] == "suspects"
    held.set()
    soon(lambda: asked(api, "jobs", {})["jobs"][-1]["name"] != "suspects")
    answer = api.submit("suspects", {"count": 3}).result()
    stored = dualform.load(recipe_runs.digits(tmp_path / "stored", dtype="float32")).suspects(3)
    assert [one["id"] for one in answer["suspects"]] == stored["id"].tolist()
    assert [one["score"] for one in answer["suspects"]] == pytest.approx(stored["score"].tolist(), rel=1e-5)
    api.close()


# The page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def site(digits: Path) -> Iterator[str]:
    with served(Api(open_run(digits, DIGITS))) as port:
        yield f"http://127.0.0.1:{port}/"


@contextmanager
def page_of(browser: Browser, path: Path, named: Companions | None = None) -> Iterator[Page]:
    with served(Api(open_run(path, named))) as port, opened(browser, f"http://127.0.0.1:{port}/") as page:
        yield page


@pytest.mark.browser
def test_the_page_lists_what_the_memory_suspects(browser: Browser, site: str, digits: Path) -> None:
    memory = dualform.load(digits)
    expected, total = list(memory.suspects(120).rows()), len(memory.suspects(10**6))
    with opened(browser, site) as page:
        page.get_by_role("button", name="Suspects").click()
        expect(part(page, "suspect")).to_have_count(60)
        words = part(page, "suspect").all_inner_texts()
        for text, row in zip(words, expected, strict=False):
            found = re.search(r"labelled (\d) [<>]?(\d+)%\s+others say (\d) [<>]?(\d+)%", text)
            assert found is not None, text
            assert [int(found[1]), int(found[3])] == [row["label"], row["suggested"]]
            shares = [100 * row["probability"], 100 * row["suggested_probability"]]
            assert [int(found[2]), int(found[4])] == pytest.approx(shares, abs=1)
            assert f"id {row['id']}" in text
            assert float(re.findall(r"score ([\d.]+)", text)[0]) == pytest.approx(row["score"], abs=0.006)
        expect(part(page, "suspect").first.locator("img.ink")).to_be_visible()
        expect(part(page, "honest")).to_contain_text("candidates, not proof")
        expect(part(page, "suspect-count")).to_have_text(f"60 of {total:,} training examples, the most suspect first")
        part(page, "more").click()
        expect(part(page, "suspect")).to_have_count(120)
        expect(page).to_have_url(re.compile("#suspects.top=120$"))
        page.locator('summary[aria-label="Save"]').click()
        with page.expect_download() as download:
            page.get_by_text("(CSV)").click()
        with download.value.path().open(newline="") as file:
            saved = list(csv.DictReader(file))
        assert [int(row["id"]) for row in saved] == [row["id"] for row in expected]
        assert [float(row["score"]) for row in saved] == pytest.approx([row["score"] for row in expected])
        assert {row["suggested_name"] for row in saved} <= set(CLASS_NAMES)
        page.get_by_role("button", name="Python code for this").click()
        expect(page.locator("main pre")).to_contain_text("memory.suspects(120)")


@pytest.mark.browser
def test_an_example_is_muted_and_asked_about(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}#suspects?top=30") as page:
        expect(part(page, "suspect")).to_have_count(30)
        second, third = (part(page, "suspect").nth(place) for place in (1, 2))
        ids = [figure.get_attribute("data-id") for figure in (second, third)]
        second.get_by_role("button").click()
        third.get_by_role("button").focus()
        page.keyboard.press("1")  # chooses a layer elsewhere
        page.keyboard.press("Space")
        for figure in (second, third):
            expect(figure.get_by_role("button")).to_have_attribute("aria-pressed", "true")
        expect(page).to_have_url(re.compile(rf"#suspects\?mute=id:{','.join(map(str, ids))}&top=30$"))
        page.reload()
        expect(part(page, "chip")).to_have_text(re.compile(f"training example {', '.join(map(str, ids))}"))
        expect(third.get_by_role("button")).to_have_attribute("aria-pressed", "true")
        part(page, "undo-mute").click()
        expect(part(page, "chip")).to_have_count(0)
        second.get_by_role("button").click()
        part(page, "ask-without").click()
        expect(part(page, "tray-before-after")).to_contain_text("Without them the model")
        expect(page).to_have_url(re.compile(f"#spotlight.*mute=id:{ids[0]}"))
        page.go_back()
        page.go_back()  # the first input of the list was chosen by the page
        expect(part(page, "suspect").first).to_be_visible()


CONTRAST = """() => {
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const behind = (node) => {
    const colour = numbers(getComputedStyle(node).backgroundColor);
    return colour.length === 4 && colour[3] === 0 ? behind(node.parentElement) : colour;
  };
  const texts = [...document.querySelectorAll("main *")].filter((node) =>
    node.checkVisibility() && !node.closest(":disabled") &&
    [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()));
  const ratio = (node) => {
    const [a, b] = [numbers(getComputedStyle(node).color), behind(node)].map(light);
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  return texts.map((node) => [ratio(node), node.outerHTML.slice(0, 80)]);
}"""


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_it_can_be_read_on_a_narrow_screen(browser: Browser, site: str, dark: bool) -> None:
    with opened(browser, f"{site}#suspects?top=many&mute=id:3", dark, NARROW) as page:
        expect(part(page, "suspect")).to_have_count(60)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        frame = page.locator("main .panel").bounding_box()
        assert frame is not None
        boxes = part(page, "suspect").evaluate_all("all => all.map(x => x.getBoundingClientRect().toJSON())")
        assert boxes[0]["top"] == boxes[1]["top"]  # two in a row
        for box in boxes:
            assert frame["x"] < box["left"] < box["right"] < frame["x"] + frame["width"]
        for figure in part(page, "suspect").all()[:3]:
            name = figure.get_by_role("img").get_attribute("alt")
            assert re.fullmatch(r"Training example \d+, labelled \d \(.*%\), the others say \d \(.*%\), .*", str(name))
        texts = page.evaluate(CONTRAST)
        assert len(texts) > 200
        assert [text for text in texts if text[0] < 4.5] == []


@pytest.mark.browser
def test_examples_that_are_no_images_are_a_table(browser: Browser, tmp_path: Path) -> None:
    path = transformer(tmp_path / "sequences")
    row = next(dualform.load(path).suspects(1).rows())
    with page_of(browser, path, TRANSFORMER) as page:
        page.get_by_role("button", name="Suspects").click()
        names = ["a", "b", "c"]
        first = part(page, "suspect").first
        name, other = names[row["label"]], names[row["suggested"]]
        expect(first).to_have_text(re.compile(rf"^{row['id']}{name} \([\d.]+%\){other} \([\d.]+%\){row['score']:.2f}"))
        first.get_by_role("button", name=f"Mute training example {row['id']}").click()
        expect(page).to_have_url(re.compile(f"mute=id:{row['id']}"))
        wide = "table => table.getBoundingClientRect().right <= table.closest('.panel').getBoundingClientRect().right"
        assert page.locator("table.slots").evaluate(wide)
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
def test_the_page_says_why_there_are_none(browser: Browser, tmp_path: Path) -> None:
    path = runs.rows(tmp_path / "rows")
    with page_of(browser, path, Companions(model=runs.ROWS.model, inputs=path / "mine.npy")) as page:
        expect(page.locator("[data-name=missing]")).to_contain_text("Suspects: examples are told apart by")
        page.get_by_role("button", name="Suspects").click()
        expect(page.locator("main .panel")).to_contain_text("record with recorder.tag(id=...)")
        expect(part(page, "tray")).to_have_count(0)
    path = squares(tmp_path / "squares")
    np.save(path / "mine.npy", np.zeros((2, 20), np.float32))
    context = browser.new_context()
    page = context.new_page()  # not watched: it will say that a request was refused
    with served(Api(open_run(path, Companions(model=runs.PICTURES.model, inputs=path / "mine.npy")))) as port:
        page.goto(f"http://127.0.0.1:{port}/#suspects")
        expect(page.locator("main .panel")).to_contain_text("are not those of a softmax cross-entropy")
        expect(part(page, "suspect")).to_have_count(0)
    context.close()
