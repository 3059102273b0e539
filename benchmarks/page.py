"""Puts measured figures into docs/benchmarks.md: each block of it between two marks is made from one document.

    python -m benchmarks --data data --json > docs/results/benchmarks.json
    python -m benchmarks.page

The prose around the blocks is written by hand; a test holds the blocks to the document. The figure is drawn, too.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.growth import report as growth_report
from benchmarks.growth_figure import figure

HOME = Path(__file__).parents[1]
PAGE = HOME / "docs" / "benchmarks.md"
RESULTS = HOME / "docs" / "results" / "benchmarks.json"

_LAYERS = ("layer-0", "layer-1", "layer-2")
_SLOTS = {"a billion": 1e9, "a trillion": 1e12}
_DISK_BYTES_PER_SECOND = 3e9  # bytes a second: one good disk
_SKETCHED = 4 * 67  # bytes a slot of a layer 800 wide

Results = dict[str, Any]
Blocks = Mapping[str, Callable[[Results], str]]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with numbers to the right."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


def machine(results: Results) -> str:
    there = results["machine"]
    threads = "1 thread" if there["threads"] == 1 else f"{there['threads']} threads"
    return (
        f"{there['processor']}, {there['cores']} cores ({there['instructions']}), {there['memory_gb']} GB, "
        f"{there['system']}, Python {there['python']}, torch {there['torch']}, {threads}."
    )


def goals(results: Results) -> str:
    rows = [[goal["claim"], goal["goal"], f"{goal['found']}", goal["met"]] for goal in results["goals"]]
    return table(["", "goal", "measured", "met"], rows)


def one_query(results: Results) -> str:
    of_layers = results["details"]["queries"]["one_query_ms"]
    names = {
        "ours": "dualform, a further query", "read": "reading the stored keys", "torch": "torch, product and topk",
        "faiss": "faiss, flat index", "usearch": "usearch, exact", "first": "dualform, the first query",
        "sketch": "dualform, the fourth, which makes the sketch",
    }  # fmt: skip
    return table(["", *_LAYERS], [[title, *(_ms(of_layers[n][key]) for n in _LAYERS)] for key, title in names.items()])


def many_queries(results: Results) -> str:
    of_layers = results["details"]["queries"]["many_queries_ms"]
    names = {
        "ours": "dualform, ten best of 1,000 queries", "torch": "torch, ten best of 1,000 queries",
        "ours_deep": "dualform, 500 best of each class, 100 queries",
        "torch_deep": "torch, 500 best of each class, 100 queries",
    }  # fmt: skip
    return table(["", *_LAYERS], [[title, *(_ms(of_layers[n][key]) for n in _LAYERS)] for key, title in names.items()])


def totals(results: Results) -> str:
    of = results["details"]["totals"]
    seconds = of["seconds"]
    rows = [[n, f"{seconds['totals'][n]:.2f} s", f"{seconds['dense'][n]:.0f} s"] for n in _LAYERS]
    ratios = {name: f"{ratio:.0f} times" for name, ratio in of["totals_vs_dense"].items()}
    rows = [[*row, ratios[row[0]]] for row in rows]
    rows += [[name, "", "", ratios[name]] for name in ("layers 1 and 2", "all")]
    return table(["", "dualform", "dense", "quicker"], rows)


def recording(results: Results) -> str:
    of = results["details"]["recording"]
    turns = ", ".join(f"{ratio:.2f}" for ratio in of["record_overheads"])
    return (
        f"A recorded step took {of['recorded_ms']['median']:.1f} ms, a plain one {of['plain_ms']['median']:.1f} ms "
        f"(medians); the recorded run took {of['record_overhead']:.2f} times the plain one (turns: {turns}). "
        f"Memory grew by {of['rss_mb'][0]:.0f} MB in the first quarter and by {of['rss_mb'][2]:.0f} MB in all."
    )


def out_of_core(results: Results) -> str:
    of, settings = results["details"]["out_of_core"]["out_of_core"], results["details"]["out_of_core"]["settings"]
    rows = [
        ["plain reading", f"{of['disk_gbs'][-1]:.2f} GB/s", ""],
        ["past the page cache", f"{of['direct_gbs'][-1]:.2f} GB/s", ""],
        ["the scan of a first query", f"{of['scan_gbs'][-1]:.2f} GB/s", f"{of['anonymous_mb']:.0f} MB"],
    ]
    head = f"{of['bytes'] / 1e9:.1f} GB in {settings['limit_bytes'] / 1e9:.1f} GB ({of['limit']})"
    return table([head, "best", "anonymous memory"], rows)


def peers(results: Results) -> str:
    head = ["", "training", "preparation", "first", "100 at once", "one more", "memory", "disk", "same class"]
    rows = [[name, *_peer(row)] for name, row in results["details"]["peers"]["peers"].items()]
    return table(head, rows)


def _peer(row: Results) -> list[str]:
    if "not_available" in row:
        return [row["not_available"], *[""] * 7]
    return [
        f"{row['training_ratio']:.2f}", _seconds(row["preparation"]["cold"]), _seconds(row["first"]["cold"]),
        _seconds(row["hundred"]["min"]), _seconds(row["further"]["min"]), f"{row['memory_mb']:,.0f} MB",
        f"{row['disk_bytes'] / 1e6:,.0f} MB", f"{row['same_class']:.0%}",
    ]  # fmt: skip


def growth(results: Results) -> str:
    return f"```\n{growth_report(results['details']['growth'])}\n```"


def beyond(results: Results) -> str:
    """Extrapolate from measurements of the paper's network: everything is proportional to slots."""
    of = results["details"]
    slots = of["queries"]["settings"]["slots"]
    each = results["bytes_ratio"] * 4 * 3994  # bytes a slot, all layers
    extra = (of["recording"]["recorded_ms"]["median"] - of["recording"]["plain_ms"]["median"]) / 1e3 / 128
    query = of["queries"]["one_query_ms"]["layer-1"]["ours"]["median"] / 1e3 / slots
    rows = [
        [
            name, _bytes(n * each), _bytes(n * _SKETCHED), _duration(n * extra), _duration(n * query),
            _duration(n * 1600 / _DISK_BYTES_PER_SECOND),
        ]
        for name, n in _SLOTS.items()
    ]  # fmt: skip
    head = ["slots", "on disk", "sketch of a layer", "added to training", "a query by sketch", "a scan of a layer"]
    return table(head, rows)


def _ms(way: Any) -> str:
    return "not installed" if isinstance(way, str) else f"{way['median']:,.1f} ms"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{1e3 * seconds:,.0f} ms"


def _bytes(size: float) -> str:
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = max(i for i in range(len(units)) if size >= 1000**i)
    return f"{size / 1000**power:.1f} {units[power]}"


def _duration(seconds: float) -> str:
    for unit, length in (("years", 365 * 86400), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.0f} s"


BLOCKS: Blocks = {
    "machine": machine, "goals": goals, "one query": one_query, "many queries": many_queries, "totals": totals,
    "recording": recording, "out of core": out_of_core, "peers": peers, "growth": growth, "beyond": beyond,
}  # fmt: skip


def filled(page: str, results: Results, blocks: Blocks | None = None) -> str:
    """Return the page with every block made from the results."""
    for name, block in (BLOCKS if blocks is None else blocks).items():
        mark, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, there, rest = page.partition(mark)
        if not there:
            raise ValueError(f"the page has no block {name!r}")
        page = f"{before}{mark}{block(results)}\n{end}{rest.partition(end)[2]}"
    return page


def main() -> None:
    results = json.loads(RESULTS.read_text())
    PAGE.write_text(filled(PAGE.read_text(), results))
    figure(results["details"]["growth"]).savefig(PAGE.with_suffix(".png"))


if __name__ == "__main__":
    main()
