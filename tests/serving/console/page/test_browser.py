"""The page in a real browser: `make test-browser`."""

from __future__ import annotations

import io
import json
import re
import shutil
import time
import urllib.request

import pytest

from tests.serving.conftest import publish
from timonel.serving.auth.keys import change_entries, new_key
from timonel.serving.launch import launch
from timonel.serving.settings.auth import AccessSettings
from timonel.serving.settings.models import LoadSettings, ModelSettings
from timonel.serving.settings.server import RestSettings, ServerSettings
from timonel.storage import find_workspace

pytestmark = pytest.mark.browser
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed; see make test-browser"
)
expect = playwright.expect
SOON_MS = 30_000


@pytest.fixture
def tab(browser, server):
    """Open the page at an address below the server's; what it complains of fails the test."""
    opened, complaints = [], []

    def open_page(path="/", *, url=None, **how):
        context = browser.new_context(**how)
        opened.append(context)
        context.set_default_timeout(SOON_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: _note(complaints, message))
        page.goto((url or server.rest_url) + path)
        return page

    yield open_page
    for context in opened:
        context.close()
    assert complaints == []


def _note(complaints, message):
    # Chromium tells of each answer that is an error; those are what some tests cause.
    if message.type == "error" and "Failed to load resource" not in message.text:
        complaints.append(message.text)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return find_workspace(tmp_path_factory.mktemp("browsed") / "workspace")


@pytest.fixture(scope="module")
def settings(place):
    def make(names, **how):
        return ServerSettings(
            models=tuple(
                ModelSettings(name=name, base_path=str(place.models / name)) for name in names
            ),
            rest_port=0,
            grpc_port=None,
            drain_s=1,
            load=LoadSettings(poll_s=0.1, settle_s=0.1),
            **how,
        )

    return make


@pytest.fixture(scope="module")
def server(exports, place, settings):
    names = ("images", "table", "dense", "versioned")
    for name in names[:3]:
        (place.models / name).mkdir()
        labels = ("cat", "dog") if name == "images" else ()
        publish(exports / name, place.models / name, 1, labels=labels)
    (place.models / "versioned").mkdir()
    publish(exports / "versioned-1", place.models / "versioned", 1)
    with launch(settings(names), place) as started:
        yield started


def photograph(white):
    """A JPEG of 640x480 pixels with some texture."""
    from PIL import Image

    image = Image.effect_noise((640, 480), 40).point(
        lambda v: min(255, v + 60 if white else v - 60)
    )
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG")
    return buffer.getvalue()


def post(server, model, content):
    request = urllib.request.Request(
        f"{server.rest_url}/v1/models/{model}:predict", json.dumps(content).encode()
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def test_models_states_and_plots_are_shown(tab, server):
    page = tab()
    expect(page.locator("#health")).to_have_text("Ready")
    for name in ("All models", "images", "table", "dense", "versioned"):
        expect(page.get_by_role("button", name=re.compile(name))).to_be_visible()
    page.get_by_role("button", name=re.compile("versioned")).click()
    expect(page.locator("#versions")).to_contain_text("Version 1 serving")
    expect(page).to_have_title("versioned · timonel")
    for value in range(40):
        assert post(server, "versioned", {"instances": [value]}) == {"predictions": [value]}
    latency = page.get_by_role("img", name=re.compile(r"^Latency, now: p99 [\d.]+ (ms|µs)"))
    expect(latency).to_be_visible()
    expect(page.locator("#chart-latency .line.s-p50[d^=M]")).to_have_count(1)
    expect(page.get_by_role("img", name=re.compile("^Requests per second, now"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Rows per batch"))).to_be_visible()
    # What was plotted is still there when the page is loaded again, with the model chosen.
    page.reload()
    expect(page.locator("#name")).to_have_text("versioned")
    expect(page.locator("#chart-latency .line.s-p50[d^=M]")).to_have_count(1)


def test_an_image_is_classified(tab):
    page = tab("/#images")
    expect(page.locator("#drop")).to_be_visible()
    page.set_input_files(
        "#files",
        [
            {"name": "night.jpg", "mimeType": "image/jpeg", "buffer": photograph(white=False)},
            {"name": "snow.jpg", "mimeType": "image/jpeg", "buffer": photograph(white=True)},
        ],
    )
    rows = page.locator(".answer .row")
    expect(rows).to_have_count(2)
    expect(rows.nth(0).locator("li").first).to_contain_text("cat")
    expect(rows.nth(1).locator("li").first).to_contain_text("dog")
    expect(rows.nth(1).get_by_role("progressbar", name="dog")).to_be_visible()
    assert rows.nth(0).locator("img").evaluate("image => image.naturalWidth") == 640
    # The editor holds names instead of megabytes.
    assert page.locator("#body").input_value().count("$image") == 2
    page.get_by_role("button", name="Remove night.jpg").click()
    page.get_by_role("button", name="Send").click()
    expect(rows).to_have_count(1)
    expect(rows.locator("li").first).to_contain_text("dog")


def test_every_model_answers_its_example(tab):
    for name, expected in (("table", "predictions"), ("dense", "class 0"), ("versioned", "0.5")):
        page = tab(f"/#{name}")
        expect(page.locator("#request")).to_have_value("predict rows")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#answer")).to_contain_text("Answered")
        expect(page.locator("#answer")).to_contain_text(expected)
        page.locator("#request").select_option("predict columns", force=True)
        page.locator("#body").press("Control+Enter")
        expect(page.locator("#answer pre")).to_contain_text("outputs")


def test_errors_are_told_as_the_server_words_them(tab):
    page = tab("/#versioned")
    body = page.locator("#body")
    expect(body).to_have_value(re.compile("instances"))
    body.fill("{nonsense")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#answer")).to_contain_text("Invalid request")
    body.fill('{"instances": ["<img src=x onerror=alert(1)>"]}')
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#answer")).to_contain_text("Error 400")
    expect(page.locator("#answer")).to_contain_text("is not of expected type: float")
    assert page.locator("#answer img").count() == 0


def test_a_broken_version_and_a_roll_back_are_told(tab, server, exports, place):
    page = tab("/#versioned")
    expect(page.locator("#versions")).to_contain_text("Version 1 serving")
    events = page.locator("#events")
    base = place.models / "versioned"
    (base / "2").mkdir()
    (base / "2" / "saved_model.pb").write_bytes(b"broken")
    expect(page.locator("#versions")).to_contain_text("Version 2 failed")
    expect(page.locator("#versions .why")).not_to_be_empty()
    publish(exports / "versioned-3", base, 3)
    expect(page.locator("#versions")).to_contain_text("Version 3 serving")
    expect(page.locator("#version")).to_have_value("3")
    shutil.rmtree(base / "3")
    expect(page.locator("#versions")).to_contain_text("Version 1 serving")
    expect(events).to_contain_text("versioned/3 is ended.")
    expect(page.locator("#version")).to_have_value("1")
    shutil.rmtree(base / "2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), (360, 740)], ids=["desk", "phone"])
def test_it_is_fit_for_all(tab, scheme, size):
    from axe_playwright_python.sync_playwright import Axe

    page = tab(
        "/#images",
        color_scheme=scheme,
        viewport={"width": size[0], "height": size[1]},
        bypass_csp=True,
    )
    expect(page.locator("#drop")).to_be_visible()
    page.set_input_files(
        "#files", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": photograph(white=True)}
    )
    expect(page.locator(".answer .row")).to_have_count(1)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_on_a_phone_a_model_can_be_tried_without_scrolling_past_plots(tab):
    page = tab("/#images", viewport={"width": 390, "height": 844})
    form, plots = page.locator("#try"), page.locator(".charts")
    expect(form).to_be_visible()
    assert form.bounding_box()["y"] < plots.bounding_box()["y"]
    assert form.bounding_box()["y"] < 844 / 2


def test_the_keyboard_is_enough(tab):
    page = tab("/#table")
    expect(page.locator("#try")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"request", "body", "send", "reset", "curl", "key-open"} <= reached


@pytest.fixture(scope="module")
def closed(place, settings, server):
    """A server that asks for keys, and a key."""
    secret, entry = new_key("reader", now=time.time())
    change_entries(place.root / "keys.json", lambda _: [entry])
    access = AccessSettings(api_keys=str(place.root / "keys.json"))
    with launch(settings(("table",), access=access), place) as started:
        yield started, secret


def test_a_key_is_asked_for_and_stays_in_the_tab(tab, closed):
    locked, secret = closed
    page = tab(url=locked.rest_url)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    dialog.get_by_label("Key").fill("wrong")
    dialog.get_by_role("button", name="Use it").click()
    expect(dialog).to_contain_text("does not accept this key")
    dialog.get_by_label("Key").fill(secret)
    dialog.get_by_role("button", name="Use it").click()
    expect(page.locator("#health")).to_have_text("Ready")
    expect(page.locator("#name")).to_have_text("table")
    expect(page.locator("#models li")).to_have_count(1)
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#answer")).to_contain_text("Answered")
    page.reload()
    expect(page.locator("#health")).to_have_text("Ready")
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    other = page.context.new_page()
    other.goto(locked.rest_url)
    expect(other.get_by_role("dialog")).to_be_visible()


def test_a_server_that_goes_is_told(browser, tab, settings, place, server):
    with launch(settings(("table",), rest=RestSettings(page=True)), place) as brief:
        page = tab(url=brief.rest_url)
        expect(page.locator("#health")).to_have_text("Ready")
    expect(page.locator("#health")).to_have_text("No response")
    expect(page.locator("#events")).to_contain_text("The server does not respond.")
