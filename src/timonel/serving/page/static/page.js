// The page: asks the server each second, lists its models, and feeds plots and form.

import { Chart, milliseconds, short } from "./charts.js";
import { Form } from "./form.js";

const PERIOD_MS = 1000, SLOWEST_MS = 8000, PATIENCE_MS = 10000, POINTS = 300, EVENTS = 50;
const KEY = "timonel.key";
const EMPTY = { mark: "", at: [] };
const STATES = {
  START: "waiting", LOADING: "loading", AVAILABLE: "serving", UNLOADING: "unloading", END: "ended",
};

const $ = (id) => document.getElementById(id);

/** Return an element with a class and content, which is never read as HTML. */
export function make(name, kind = "", ...content) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.append(...content);
  return made;
}

/** Ask the server; addresses are relative, so that the page works behind a proxy's prefix. */
export async function ask(address, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  return fetch(address, { ...options, headers, cache: "no-store", credentials: "same-origin" });
}

const charts = {
  latency: new Chart($("chart-latency"), {
    title: "Latency",
    format: milliseconds,
    empty: "no requests yet",
    series: [{ key: "p99", label: "p99" }, { key: "p95", label: "p95" }, { key: "p50", label: "p50" }],
  }),
  rate: new Chart($("chart-rate"), {
    title: "Requests each second",
    format: (value) => short(value),
    empty: "waiting for the first point",
    series: [{ key: "rate", label: "answered", area: true }, { key: "errors", label: "errors" }],
  }),
  stages: new Chart($("chart-stages"), {
    title: "Where the time goes",
    format: milliseconds,
    empty: "no requests yet",
    stacked: true,
    series: [
      { key: "compute", label: "compute" }, { key: "queue", label: "queue" },
      { key: "decode", label: "decode" }, { key: "encode", label: "encode" },
    ],
  }),
  batch: new Chart($("chart-batch"), {
    title: "Rows in a batch",
    format: (value) => short(value),
    empty: "no batches yet",
    series: [{ key: "batch", label: "mean", area: true }],
  }),
};
for (const chart of Object.values(charts)) {
  chart.onHover = (index) => Object.values(charts).forEach((each) => each.mark(index));
}

const form = new Form(ask, make);
let chosen = null; // the model's name; "" for all, null for none yet
let sees_all = false;
let history = EMPTY;
let before = null; // what was known of the versions, by "model/version"
let failures = 0;
let timer = 0;
let asking = null;

async function poll() {
  clearTimeout(timer);
  asking?.abort();
  const mine = (asking = new AbortController());
  const patience = setTimeout(() => mine.abort(), PATIENCE_MS);
  const wanted = chosen;
  let answered = 0;
  try {
    const query = new URLSearchParams({ model: wanted ?? "", after: history.mark });
    const answer = await ask(`page/live?${query}`, { signal: mine.signal });
    answered = answer.status;
    if (answer.status === 401) {
      tell("closed", "Locked");
      openKey(sessionStorage.getItem(KEY) ? "The server does not accept this key." : "");
      return;
    }
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const live = await answer.json();
    failures = 0;
    if (wanted === chosen) take(live);
  } catch (error) {
    if (asking !== mine) return;
    failures += 1;
    tell("down", answered ? `Answers ${answered}` : "No answer");
    if (failures === 1) log("bad", answered ? `This page cannot be kept up to date: ${error.message}.` : "The server does not answer.");
  } finally {
    clearTimeout(patience);
    if (asking === mine) {
      asking = null;
      if (!document.hidden && !$("key-dialog").open) {
        timer = setTimeout(poll, Math.min(SLOWEST_MS, PERIOD_MS * 2 ** Math.min(failures, 3)));
      }
    }
  }
}

function take(live) {
  const { server, models } = live;
  sees_all = server.everything;
  if (server.draining) tell("bad", "Draining");
  else if (server.unready.length) tell("bad", `Not ready: ${listed(server.unready)}`);
  else tell("good", "Ready");
  $("about").textContent = `${server.release} · up ${duration(server.uptime)}`;
  note(models);
  const names = models.map((model) => model.name);
  if (chosen === null || (chosen !== "" && !names.includes(chosen)) || (chosen === "" && !sees_all)) {
    const asked = addressed();
    choose(names.includes(asked) ? asked : names.length === 1 || !sees_all ? names[0] ?? "" : "");
    list(models);
    return;
  }
  list(models);
  if (live.history) extend(live.history);
  const model = models.find((each) => each.name === chosen);
  versions(model ? [model] : models, !model);
  form.offer(model);
}

function extend(more) {
  const { mark, whole, ...columns } = more;
  const old = whole ? EMPTY : history; // whole: of another process, or the first answer
  const joined = Object.entries(columns).map(([name, column]) => [name, [...(old[name] ?? []), ...column].slice(-POINTS)]);
  history = { ...old, ...Object.fromEntries(joined), mark };
  for (const chart of Object.values(charts)) chart.show(history);
}

function choose(name) {
  if (name === chosen) return;
  chosen = name;
  history = EMPTY;
  for (const chart of Object.values(charts)) chart.show(history);
  $("name").textContent = name || "All models";
  document.title = name ? `${name} · timonel` : "timonel";
  window.history.replaceState(null, "", name ? `#${encodeURIComponent(name)}` : location.pathname);
  $("versions").replaceChildren();
  poll();
}

function list(models) {
  const entries = models.map((model) => ({ name: model.name, label: model.name, now: model.now, state: worst(model) }));
  if (sees_all && models.length > 1) entries.unshift({ name: "", label: "All models", now: null, state: null });
  const shown = [...$("models").children];
  if (shown.length !== entries.length || entries.some((each, i) => shown[i].dataset.name !== each.name)) {
    const focus = document.activeElement?.closest?.("#models li")?.dataset.name;
    $("models").replaceChildren(...entries.map(entry));
    if (focus !== undefined) {
      [...$("models").children].find((each) => each.dataset.name === focus)?.firstChild.focus();
    }
  }
  entries.forEach((each, i) => {
    const item = $("models").children[i];
    const button = item.firstChild;
    button.setAttribute("aria-current", each.name === chosen ? "true" : "false");
    const [dot, , figures] = button.children;
    dot.dataset.state = each.state?.kind ?? "none";
    dot.textContent = each.state ? each.state.text : "";
    figures.textContent = each.now ? `${short(each.now.rate)}/s · ${milliseconds(each.now.p99)}` : "";
  });
  $("models-none").hidden = models.length > 0;
}

function entry(each) {
  const button = make("button", "model", make("span", "dot"), make("span", "label", each.label), make("span", "figures"));
  button.type = "button";
  button.addEventListener("click", () => choose(each.name));
  const item = make("li", "", button);
  item.dataset.name = each.name;
  return item;
}

/** Return how a model does as a whole: serving if any version is. */
function worst(model) {
  const serving = model.versions.filter((each) => each.state === "AVAILABLE");
  if (serving.some((each) => !each.away)) {
    const failed = model.versions.some((each) => each.message && each.version > serving[0].version);
    return failed ? { kind: "warn", text: "serving, but the newest version failed" } : { kind: "good", text: "serving" };
  }
  if (serving.length) return { kind: "bad", text: "its process is away" };
  if (model.versions.some((each) => each.state === "LOADING")) return { kind: "warn", text: "loading" };
  return { kind: "bad", text: "not serving" };
}

function versions(models, named) {
  const wanted = models.flatMap((model) => [...model.versions].reverse().map((each) => ({ ...each, model: model.name })));
  // Those that went in good order are of no interest for long.
  const shown = wanted.filter((each) => each.state !== "END" || each.message).slice(0, 24);
  const items = shown.map((each) => {
    const kind = each.away || each.message ? "bad" : each.state === "AVAILABLE" ? "good" : each.state === "END" ? "none" : "warn";
    const label = named ? `${each.model}/${each.version}` : `Version ${each.version}`;
    const item = make("li", "version", make("span", "dot"), make("b", "", label), ` ${each.away ? "away" : each.message && each.state === "END" ? "failed" : STATES[each.state] ?? each.state}`);
    item.dataset.state = kind;
    item.firstChild.dataset.state = kind;
    for (const name of each.labels) item.append(" ", make("span", "tag", name));
    if (each.restarts) item.append(" ", make("span", "tag", `started again ${each.restarts}×`));
    if (each.message) item.append(make("p", "why", each.message));
    return item;
  });
  const text = items.map((each) => each.outerHTML).join("");
  if ($("versions").dataset.shown !== text) {
    $("versions").dataset.shown = text;
    $("versions").replaceChildren(...items);
  }
}

/** Compare the versions with those of a second ago, and tell what has changed. */
function note(models) {
  const now = new Map();
  for (const model of models) for (const each of model.versions) now.set(`${model.name}/${each.version}`, each);
  if (before) {
    for (const [name, each] of now) {
      const old = before.get(name);
      const restarted = (each.restarts ?? 0) > (old?.restarts ?? 0);
      if (each.away && !old?.away) log("bad", `${name} is away: ${each.message}`);
      else if (old?.away && !each.away && each.state === "AVAILABLE") log("good", `${name} answers again.`);
      else if (old && restarted && !each.away) log("warn", `The process of ${name} ended and was started again.`);
      else if (each.message && each.message !== old?.message) log("bad", `${name} failed: ${each.message}`);
      else if (each.state !== old?.state) log(each.state === "AVAILABLE" ? "good" : "none", `${name} is ${STATES[each.state] ?? each.state}.`);
    }
    for (const name of before.keys()) if (!now.has(name)) log("none", `${name} is gone.`);
  }
  before = now;
}

function log(kind, text) {
  const list = $("events");
  if (list.firstElementChild?.className === "quiet") list.replaceChildren();
  const item = make("li", "", make("time", "", new Date().toLocaleTimeString()), make("span", "dot"), text);
  item.children[1].dataset.state = kind;
  list.prepend(item);
  while (list.children.length > EVENTS) list.lastElementChild.remove();
}

function tell(state, text) {
  const health = $("health");
  const known = { good: "good", bad: "bad", down: "bad", closed: "warn" }[state];
  if (health.textContent !== text) health.textContent = text;
  health.dataset.state = known;
}

function listed(names) {
  return names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ");
}

/** Return the model that the address names. */
function addressed() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const [unit, size] = units.find(([, each]) => seconds >= each) ?? units[3];
  return `${Math.floor(seconds / size)} ${unit}`;
}

function openKey(why) {
  $("key-why").textContent = why || "The key or token is kept in this tab, and is gone when it is closed.";
  $("key").value = "";
  if (!$("key-dialog").open) $("key-dialog").showModal();
}

function useKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  chosen = null;
  before = null;
  history = EMPTY;
  form.offer(undefined);
  $("models").replaceChildren();
  $("versions").replaceChildren();
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the chosen model
  $("main").focus();
});
$("key-open").addEventListener("click", () => openKey(""));
$("key-close").addEventListener("click", () => $("key-dialog").close());
$("key-forget").addEventListener("click", () => { useKey(""); $("key-dialog").close(); });
$("key-form").addEventListener("submit", () => useKey($("key").value.trim()));
$("key-dialog").addEventListener("close", () => { failures = 0; poll(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
window.addEventListener("hashchange", () => {
  const name = addressed();
  if (name && before && [...before.keys()].some((each) => each.startsWith(`${name}/`))) choose(name);
});
poll();
