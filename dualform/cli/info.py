"""`dualform info` and `dualform verify`: show what a run holds, and whether it is exact."""

import typer

from dualform.cli.app import AsJson, Run, app
from dualform.cli.output import print_json, quiet

_EXIT_CODES = {"not exact": 1, "not certifiable": 3}  # 2 is for a command that cannot be understood


@app.command(epilog="Example: dualform info runs/demo")
def info(run: Run, as_json: AsJson = False) -> None:
    """Show what a run holds: layers, slots, steps, snapshots, tags, bytes. Reads no slots."""
    from dualform import store, terminal

    opened = store.Run(run)
    if as_json:
        print_json(store.summary(opened))
    else:
        terminal.console().print(terminal.facts(store.summary_lines(opened)))


@app.command(epilog="Example: dualform verify runs/demo && echo exact")
def verify(run: Run, as_json: AsJson = False) -> None:
    """Read every byte, and measure how exactly the dual form equals the model.

    Exits with 0 if it is exact, with 1 if it is not, and with 3 if the run holds nothing that could prove it: keys
    only, no steps, or weights in a precision that cannot be certified.
    """
    import dualform
    from dualform import terminal

    out = terminal.console()
    memory = dualform.load(run)
    with terminal.busy(quiet(out, as_json), "verifying") as at:
        certificate = memory.verify(at)
    if as_json:
        print_json(certificate.to_dict())
    else:
        out.print(*terminal.certificate(certificate), sep="\n")
    if not certificate.ok:
        raise typer.Exit(_EXIT_CODES[certificate.status])
