"""Pages of endpoints in a real browser: `make test-browser`."""

from __future__ import annotations

import re
import signal

import pytest

from tests.endpoints.harness import Load
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("fake_runtime")]

MODELS = {1: 1, 2: 2, 3: 3}
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed; see make test-browser"
)
expect = playwright.expect
SOON_MS = 60_000


@pytest.fixture(scope="module")
def endpoint(endpoints):
    """An endpoint with a load on two versions."""
    made = endpoints.deploy("digits/1", min_replicas=1, max_replicas=2)
    made.change("canary", traffic={"percent": {1: 80, 2: 20}, "labels": {"canary": 2}})
    made.wait()
    with Load(made, clients=1):
        yield made


@pytest.fixture
def tab(browser, endpoint):
    """Open a page at the address of the endpoint; what it complains of fails the test."""
    opened, complaints = [], []

    def note(message):
        # Chromium tells of each failed request; those are what some tests cause.
        if message.type == "error" and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    def open_page(url=None, **how):
        context = browser.new_context(**how)
        opened.append(context)
        context.set_default_timeout(SOON_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", note)
        page.goto(url or endpoint.page_url)
        return page

    yield open_page
    for context in opened:
        context.close()
    assert complaints == []


def test_the_page_follows_load_and_traffic(tab, endpoint):
    page = tab()
    expect(page.locator("#health")).to_have_text("Ready")
    plot = page.get_by_role("img", name=re.compile(r"^Requests per second, now: version 1 [\d.]+"))
    expect(plot).to_be_visible(timeout=SOON_MS)
    for name in ("rate", "concurrency", "replicas"):
        path = page.locator(f"#chart-{name} .line[d^=M]").first
        expect(path).to_be_attached(timeout=SOON_MS)
    card = page.locator("#versions li").filter(has_text="Version 2")
    expect(card).to_contain_text("canary")
    expect(card).to_contain_text("20 %")
    page.evaluate("window.kept = document.querySelector('#versions li')")
    endpoint.split({1: 30, 2: 70})
    expect(card).to_contain_text("70 %", timeout=SOON_MS)
    expect(page.get_by_role("img", name="version 1 30 %, version 2 70 %")).to_be_visible()
    expect(page.locator("#events")).to_contain_text("gets the traffic", timeout=SOON_MS)
    # Changed in place, without a reload.
    assert page.evaluate("window.kept === document.querySelector('#versions li')")


def test_a_rollout_is_followed_to_its_report(tab, endpoint):
    endpoint.split({1: 100})
    endpoint.wait()
    page = tab()
    endpoint.rollout(3, steps=(50, 100), interval_s=3, guards=("error_rate<50%",), min_requests=5)
    rollout = page.locator("#rollout")
    expect(rollout).to_contain_text("from version 1 to 3: running", timeout=SOON_MS)
    expect(rollout).to_contain_text("error_rate<50%", timeout=SOON_MS)
    expect(rollout).to_contain_text("promoted", timeout=SOON_MS)
    rollout.get_by_role("link", name="Report").click()
    expect(page.get_by_role("heading", name="digits: rollout 1 to version 3")).to_be_visible()
    assert page.locator("img").evaluate("image => image.naturalWidth") > 0


def test_an_open_page_tells_of_a_hung_control_plane_and_survives_its_end(tab, endpoints):
    page = tab()
    expect(page.locator("#health")).to_have_text("Ready")
    (stopped,) = endpoints.kill("endpoints-controller", signal.SIGSTOP)
    expect(page.locator("#health")).to_have_text(
        "No response from the control plane", timeout=SOON_MS
    )
    endpoints.kill("endpoints-controller", signal.SIGKILL)
    until(lambda: endpoints.pids("endpoints-controller") not in ([], [stopped]))
    expect(page.locator("#health")).to_have_text("Ready", timeout=SOON_MS)
    expect(page.locator("#chart-rate .line[d^=M]").first).to_be_attached()


def test_without_javascript_the_state_is_shown(tab):
    page = tab(java_script_enabled=False)
    expect(page.locator("#health")).to_have_text("Ready")
    expect(page.locator("#versions")).to_contain_text("Autoscaler")
    assert "Plots and updates need JavaScript." in page.content()
    expect(page.locator("#charts")).to_be_hidden()


def test_the_list_leads_to_the_page(tab, endpoint):
    page = tab(url=endpoint.page_url.partition("/endpoints/")[0])
    expect(page.locator("#health")).to_have_text("1 endpoint")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.get_by_role("link", name="digits").click()
    expect(page.get_by_role("heading", name="digits")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), (360, 740)], ids=["desk", "phone"])
def test_it_is_fit_for_all(tab, endpoint, scheme, size):
    from axe_playwright_python.sync_playwright import Axe

    viewport = {"width": size[0], "height": size[1]}
    home = endpoint.page_url.partition("/endpoints/")[0]
    for url in (endpoint.page_url, home):
        page = tab(url=url, color_scheme=scheme, viewport=viewport, bypass_csp=True)
        expect(page.locator(".card").first).to_be_visible()
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_a_deleted_endpoint_is_told(tab, endpoints):
    other = endpoints.deploy("digits/1", name="brief", min_replicas=0, max_replicas=1)
    page = tab(url=other.page_url)
    expect(page.get_by_role("heading", name="brief")).to_be_visible()
    other.delete()
    expect(page.locator("#health")).to_have_text("Not found", timeout=SOON_MS)
    expect(page.locator("#notices")).to_contain_text("no such endpoint: brief")
