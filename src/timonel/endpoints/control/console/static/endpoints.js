// Pages of endpoints: fetch the page again and again, and update what has changed in it.

import { Chart, short } from "./charts.js";
import { $ } from "./dom.js";

const PERIOD_MS = 2000, SLOWEST_MS = 10000, PATIENCE_MS = 10000;
const page = location.pathname.replace(/\/$/, "");
const charts = {};
let newest = 0; // time of the last point in the plots
let shown = ""; // the versions in the plots
let failures = 0;
let timer = 0;

async function refresh() {
  clearTimeout(timer);
  try {
    const answer = await ask(page || "/");
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of fresh.querySelectorAll("[data-part]")) {
      const old = $(part.id);
      if (old) morph(old, document.importNode(part, true));
    }
    if ($("charts") && answer.ok) await plot();
    failures = 0;
  } catch {
    failures += 1;
    tell("No response from the control plane");
  }
  const wait = Math.min(SLOWEST_MS, PERIOD_MS * 2 ** failures);
  if (!document.hidden) timer = setTimeout(refresh, wait);
}

function ask(path) {
  return fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
}

function tell(text) {
  const health = $("health");
  health.dataset.state = "bad";
  if (health.textContent !== text) health.textContent = text;
}

/** Make an element equal another one; what is equal already stays, with its focus. */
function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  const before = [...old.childNodes], after = [...fresh.childNodes];
  if (old.nodeName !== fresh.nodeName || before.length !== after.length) {
    old.replaceWith(fresh);
  } else if (old.nodeType === Node.TEXT_NODE) {
    old.data = fresh.data;
  } else {
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) old.setAttribute(name, value);
    before.forEach((each, i) => morph(each, after[i]));
  }
}

async function plot() {
  const history = await (await ask(`${page}/history?after=${newest}`)).json();
  if (!history.at.length) return;
  newest = history.at[history.at.length - 1];
  const versions = Object.keys(history.rates);
  if (shown !== versions.join()) {
    shown = versions.join();
    build(versions);
  }
  const rates = Object.fromEntries(versions.map((each) => [`version-${each}`, history.rates[each]]));
  for (const chart of Object.values(charts)) chart.show({ ...history, ...rates });
}

function build(versions) {
  const common = { format: (value) => short(value), empty: "no measurements yet" };
  const made = {
    rate: {
      title: "Requests per second",
      stacked: true,
      series: versions.map((each) => ({
        key: `version-${each}`, kind: `version-${each % 5}`, label: `version ${each}`,
      })),
    },
    concurrency: {
      title: "Requests in flight",
      series: [{ key: "concurrency", label: "all", area: true }, { key: "held", label: "waiting" }],
    },
    replicas: {
      title: "Replicas",
      series: [{ key: "ready", label: "ready", area: true }, { key: "desired", label: "desired" }],
    },
  };
  $("charts").hidden = false;
  for (const [name, options] of Object.entries(made)) {
    $(`chart-${name}`).replaceChildren();
    charts[name] = new Chart($(`chart-${name}`), { ...common, ...options });
    charts[name].onHover = (index) => Object.values(charts).forEach((each) => each.mark(index));
  }
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
