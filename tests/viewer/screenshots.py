"""The pictures of the viewer in docs/guides/viewer.md: real pages of real runs.

    python -m tests.viewer.screenshots --images RUN --tasks RUN --text RUN --suspects RUN --out docs/viewer

Runs are those of `dualform reproduce single | continual | charlm --values`, kept with --keep-run, and one that was
trained with some labels changed, as benchmarks/suspects.py changes them. Each picture waits
until nothing is being prepared any more, so that none shows a page half drawn.
"""

import argparse
import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import Browser

from dualform.viewer.api import Api
from dualform.viewer.opened_run import open_run
from tests.viewer.browser import launched, opened, part
from tests.viewer.runs import asked
from tests.viewer.served import served

LAPTOP, PROJECTOR = {"width": 1366, "height": 768}, {"width": 1920, "height": 1080}
COLOURS = 256  # of a picture: a tenth of the bytes, and nobody sees it


@dataclass(frozen=True)
class Shot:
    """A page by its address."""

    name: str
    state: str
    size: dict[str, int]
    dark: bool = False


def three() -> str:
    """The strokes of a handwritten 3."""
    bows = [(70, 60), (95, 38), (130, 32), (160, 48), (165, 75), (145, 100), (112, 112)]
    below = [(150, 118), (175, 145), (172, 180), (145, 208), (105, 212), (68, 190)]
    return base64.urlsafe_b64encode(bytes(one for point in bows + below for one in point)).decode().rstrip("=")


IMAGES = [
    Shot("home", "#home", LAPTOP),
    Shot("spotlight", "#spotlight?input={wrong}", PROJECTOR),
    Shot("muted", "#spotlight?input={wrong}&mute=label:{predicted}", PROJECTOR),
    Shot("drawn", f"#spotlight?input=drawn:{three()}", PROJECTOR, dark=True),
    Shot("time", "#spotlight?input={wrong}&step={early}", PROJECTOR),
]
TASKS = [Shot("tasks", "#home", LAPTOP), Shot("task-muted", "#spotlight?input={wrong}&mute=task:{last}", PROJECTOR)]
SUSPECTS = [Shot("suspects", "#suspects?mute=id:{suspect}", LAPTOP)]
TEXT = [Shot("prompt", "#prompt?prompt={prompt}&mute=positions:{document}", PROJECTOR)]


@contextmanager
def site(run: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """The address of a run's viewer with everything prepared, and what addresses are made with."""
    api = Api(open_run(run), prepare=False)
    api.jobs.run()
    about = asked(api, "run", {})
    facts: dict[str, object] = {}
    if about["example"]:
        best = asked(api, "passages", {"input": {"prompt": about["example"]}, "layer": about["layers"][0]["name"]})
        document = "-".join(map(str, best["passages"][0]["document"]))
        facts |= {"prompt": quote(about["example"]), "document": document}
    if about["inputs"]:
        (wrong,) = asked(api, "inputs", {"count": 1})["inputs"]
        early = about["snapshots"][min(1, len(about["snapshots"]) - 1)]
        facts |= {"wrong": wrong["index"], "predicted": wrong["predicted"], "early": early}
    if "suspects" not in about["cannot"]:
        facts["suspect"] = asked(api, "suspects", {"count": 1})["suspects"][0]["id"]
    if about["tasks"]:
        facts["last"] = about["tasks"][-1]["name"]
    with served(api) as port:
        yield f"http://127.0.0.1:{port}/", facts


def take(browser: Browser, run: Path, shots: list[Shot], out: Path) -> None:
    with site(run) as (url, facts):
        for shot in shots:
            with opened(browser, url + shot.state.format(**facts), shot.dark, shot.size) as page:
                part(page, "certificate").first.wait_for()
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(1500)  # for charts to have found their widths
                save(page.screenshot(), out / f"{shot.name}.png")


def save(picture: bytes, path: Path) -> None:
    image = Image.open(BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.viewer.screenshots", description=(__doc__ or "").split("\n")[0]
    )
    for name in ("images", "tasks", "text", "suspects"):
        parser.add_argument(f"--{name}", type=Path, help="a recorded run of that kind")
    parser.add_argument("--out", type=Path, default=Path("docs/viewer"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with launched() as browser:
        for name, shots in {"images": IMAGES, "tasks": TASKS, "text": TEXT, "suspects": SUSPECTS}.items():
            run = getattr(options, name)
            if run is not None:
                take(browser, run, shots, options.out)


if __name__ == "__main__":
    main()
