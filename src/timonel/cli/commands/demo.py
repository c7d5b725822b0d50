"""``timonel demo``: run the whole path on real data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from timonel.cli.groups import StyledCommand, single

app = single()


@app.command(cls=StyledCommand)
def demo(
    folder: Annotated[
        Path, typer.Option(help="Working folder; an earlier demo there continues.")
    ] = Path("demo"),
) -> None:
    """Run the whole path on real handwritten digits.

    Writes 600 images, converts, trains, exports, serves and predicts, then publishes a second
    version under load and rolls back. It runs the same commands as in the quick start.
    """
    from timonel.cli.demo.story import run_demo
    from timonel.cli.render.output import console

    run_demo(folder.absolute(), console())
