"""Many people at once: everyone gets the answers of somebody who is alone."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dualform.errors import UnknownName
from dualform.viewer.api import Api
from dualform.viewer.jobs import Job, Jobs
from dualform.viewer.opened_run import open_run
from tests.viewer import runs
from tests.viewer.runs import asked
from tests.viewer.served import post, served

pytestmark = pytest.mark.slow


def some_requests() -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = [("run", {}), ("inputs", {})]
    for index in range(12):
        of = {"input": {"index": index}}
        found += [("predict", of), ("predict", {**of, "step": 7}), ("history", of)]
        found += [("spotlight", {**of, "layer": layer, "per": per}) for layer in ("0", "2") for per in ("id", None)]
        found += [("mute", {**of, "mute": [one]}) for one in ({"label": [index % 3]}, {"steps": [index, 20]})]
    return found


def test_answers_do_not_mix(tmp_path: Path) -> None:
    """From 50 clients, while what makes answers quick is being prepared."""
    path = runs.pictures(tmp_path / "run")
    alone = Api(open_run(path, runs.PICTURES), prepare=False)
    alone.jobs.run()
    expected = [asked(alone, name, body) for name, body in some_requests()]
    api = Api(open_run(path, runs.PICTURES))
    with served(api) as port, ThreadPoolExecutor(50) as clients:
        api.jobs.wait()
        again = Jobs([Job("spotlight", "", lambda tell: api._spotlights.warm_up()) for _ in range(20)])
        warming = threading.Thread(target=again.run)
        warming.start()
        found = list(clients.map(lambda one: post(port, *one), some_requests()))
        again.stop()
        warming.join()
    assert {one.status for one in found} == {200}
    for answer, wanted in zip(found, expected, strict=True):
        assert rounded(answer.json()) == rounded(wanted)


def rounded(value: Any) -> Any:
    """Alike to five digits: sums may be taken in another order once keys have been sketched."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return float(f"{value:.3g}") if isinstance(value, float) else value


def test_a_job_that_fails_says_so_and_the_next_begins(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(tell: Any) -> None:
        tell(0.5)
        raise UnknownName("layer", "7", ["0", "2"])

    def break_down(tell: Any) -> None:
        raise ZeroDivisionError("a secret of the program")

    done: list[str] = []
    jobs = Jobs(
        [Job("a", "one", refuse), Job("b", "two", break_down), Job("c", "three", lambda tell: done.append("c"))]
    )
    jobs.run()
    told = jobs.to_list()
    assert [one["failed"] for one in told] == [
        "no layer '7'; choose from '0', '2'",
        "this failed unexpectedly; the terminal has the reason",
        None,
    ]
    assert all(one["done"] for one in told)
    assert told[0]["share"] == 0.5
    assert done == ["c"]
    assert "two failed: ZeroDivisionError" in capsys.readouterr().err


def test_jobs_that_were_stopped_do_not_begin() -> None:
    done: list[str] = []
    jobs = Jobs([Job("a", "one", lambda tell: jobs.stop()), Job("b", "two", lambda tell: done.append("b"))])
    jobs.run()
    assert not done
    assert [one["done"] for one in jobs.to_list()] == [True, False]


def test_a_prediction_is_not_taken_for_a_query(tmp_path: Path) -> None:
    """While the network is watched for the queries of one input, another is predicted."""
    opened_run = open_run(runs.pictures(tmp_path / "run"), runs.PICTURES)
    api = Api(opened_run, prepare=False)
    body = {"input": {"index": 3}, "layer": "0"}
    alone = asked(api, "spotlight", body)
    assert opened_run.network is not None
    with ThreadPoolExecutor(1) as other:

        def meanwhile(*_: Any) -> None:
            hook.remove()
            other.submit(asked, api, "predict", {"input": {"index": 5}}).result()
            other.submit(asked, api, "mute", {"input": {"index": 5}, "mute": [{"steps": [0, 3]}]}).result()

        hook = opened_run.network.register_forward_pre_hook(meanwhile)
        assert asked(api, "spotlight", body) == alone
