// The page: asks the server each second, and hands what it tells to the lists, plots and form.

import { forget, knows, log, note } from "./changes.js";
import { $ } from "./dom.js";
import { Form } from "./form.js";
import { ask, asksForKey, hasKey, offerKey, openKey } from "./key.js";
import { list } from "./models.js";
import { plot } from "./plots.js";
import { versions } from "./versions.js";

const PERIOD_MS = 1000, SLOWEST_MS = 8000, PATIENCE_MS = 10000;
const EMPTY = { at: [] };

const form = new Form();
let chosen = null; // the model's name; "" for all, null for none yet
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
    const query = new URLSearchParams({ model: wanted ?? "" });
    const answer = await ask(`page/live?${query}`, { signal: mine.signal });
    answered = answer.status;
    if (answer.status === 401) {
      tell("closed", "Locked");
      openKey(hasKey() ? "The server does not accept this key." : "");
      return;
    }
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const live = await answer.json();
    failures = 0;
    if (wanted === chosen) take(live);
  } catch (error) {
    if (asking !== mine) return;
    failures += 1;
    tell("down", answered ? `Answers ${answered}` : "No response");
    if (failures === 1) log("bad", answered ? `Cannot update this page: ${error.message}.` : "The server does not respond.");
  } finally {
    clearTimeout(patience);
    if (asking === mine) {
      asking = null;
      if (!asksForKey()) { // in the background too: each answer adds a point to the plots
        timer = setTimeout(poll, Math.min(SLOWEST_MS, PERIOD_MS * 2 ** Math.min(failures, 3)));
      }
    }
  }
}

function take(live) {
  const { server, models } = live;
  if (server.draining) tell("bad", "Draining");
  else if (server.unready.length) tell("bad", `Not ready: ${listed(server.unready)}`);
  else tell("good", "Ready");
  $("about").textContent = `${server.release} · up ${duration(server.uptime)}`;
  note(models);
  const names = models.map((model) => model.name);
  if (chosen === null || (chosen !== "" && !names.includes(chosen))) {
    const asked = addressed();
    choose(names.includes(asked) ? asked : names.length === 1 ? names[0] : "");
    list(models, { chosen, choose });
    return;
  }
  list(models, { chosen, choose });
  if (live.history) plot(live.history);
  const model = models.find((each) => each.name === chosen);
  versions(model ? [model] : models, !model);
  form.offer(model);
}

function choose(name) {
  if (name === chosen) return;
  chosen = name;
  plot(EMPTY);
  $("name").textContent = name || "All models";
  document.title = name ? `${name} · timonel` : "timonel";
  window.history.replaceState(null, "", name ? `#${encodeURIComponent(name)}` : location.pathname);
  $("versions").replaceChildren();
  poll();
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

/** Begin anew, as others may be seen with another key. */
function reset() {
  chosen = null;
  forget();
  form.offer(undefined);
  $("models").replaceChildren();
  $("versions").replaceChildren();
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the chosen model
  $("main").focus();
});
offerKey(reset, () => { failures = 0; poll(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
window.addEventListener("hashchange", () => {
  const name = addressed();
  if (name && knows(name)) choose(name);
});
poll();
