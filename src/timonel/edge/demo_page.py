"""A page that classifies images in the browser: one file, which loads nothing else."""

from __future__ import annotations

import base64
import gzip
import html
import json
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from timonel.edge.report import ConversionReport
from timonel.errors import SpecError
from timonel.storage import write_text

DEMO_FILE = "demo.html"
_RESIZES = ("bilinear", "nearest")
"""Methods that page.js computes to the last bit as TensorFlow does."""
_FILES = resources.files(__package__).joinpath("browser")


def write_demo_page(folder: Path, report: ConversionReport) -> None:
    """Write the page of a model into its folder, unless the page would show something else.

    The model takes images that the page can prepare as its training did, and has one output.
    """
    if report.layout != "image":
        raise SpecError("--page needs a model of images", hint="remove --page")
    if len(report.outputs) != 1:
        names = ", ".join(each.name for each in report.outputs)
        raise SpecError(f"--page shows one output, the model has {names}", hint="remove --page")
    resize = report.preparation["resize"]
    if resize not in _RESIZES:
        raise SpecError(
            f"--page resizes images with {' or '.join(_RESIZES)}, the training used {resize}",
            hint='remove --page, or train with load(..., method="bilinear")',
        )
    (image,), (output,) = report.inputs, report.outputs
    in_litert = report.target == "litert"
    facts = {
        "input": image.model_dump(),
        "output": output.model_dump(),
        "size": image.shape[1:],
        "resize": resize,
        "shrinks": report.preparation.get("shrink_on_load", False),
        "labels": report.labels,
        "model": (_flatbuffer if in_litert else _graph_model)(folder, report),
    }
    adapter = "litert.js" if in_litert else "tfjs.js"
    page = Template(_FILES.joinpath("page.html").read_text()).substitute(
        title=html.escape(report.model),
        runtime=_litert_js() if in_litert else _tensorflow_js(),
        # Browsers unpack it; that is a quarter of the size.
        wasm=_base64(_FILES.joinpath("litert_wasm.wasm.gz").read_bytes()) if in_litert else "",
        # A label such as </script> or <!-- must not end the element, or hide its end.
        facts=json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c"),
        script="\n".join(_FILES.joinpath(name).read_text() for name in (adapter, "page.js")),
    )
    write_text(folder / DEMO_FILE, page)


def _flatbuffer(folder: Path, report: ConversionReport) -> str:
    return _base64((folder / report.files[0]).read_bytes())


def _graph_model(folder: Path, report: ConversionReport) -> dict[str, Any]:
    topology = json.loads((folder / report.files[0]).read_text())
    (group,) = topology["weightsManifest"]
    content = b"".join((folder / name).read_bytes() for name in group["paths"])
    return {
        "topology": {key: topology[key] for key in ("modelTopology", "signature")},
        "weights": group["weights"],
        "weightData": _base64(content),
    }


def _tensorflow_js() -> str:
    # It evaluates a string if this is undeclared, which the page forbids.
    return f"var regeneratorRuntime;\n{_unpacked('tf.min.js.gz')}"


def _litert_js() -> str:
    """Return LiteRT.js as one script, which a page without a server needs: no modules."""
    core, _, _ = _unpacked("litert_core.js.gz").partition("//# sourceMappingURL")
    for module, script in (
        ('import { createWasmLib } from "@litertjs/wasm-utils";', ""),
        ("\nexport {", "\nglobalThis.litert = {"),
    ):
        assert module in core
        core = core.replace(module, script)
    return f"{_unpacked('litert_wasm.js.gz')}\n(() => {{\n{core}\n}})();"


def _unpacked(name: str) -> str:
    return gzip.decompress(_FILES.joinpath(name).read_bytes()).decode()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
