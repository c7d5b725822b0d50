// What has changed since the page was opened, as a log.

import { $, make } from "./dom.js";
import { STATES } from "./versions.js";

const EVENTS = 50;
let before = null; // what was known of the versions, by "model/version"

/** Compare the versions with those of a second ago, and tell what has changed. */
export function note(models) {
  const now = new Map();
  for (const model of models) for (const each of model.versions) now.set(`${model.name}/${each.version}`, each);
  if (before) {
    for (const [name, each] of now) {
      const old = before.get(name);
      const restarted = (each.restarts ?? 0) > (old?.restarts ?? 0);
      if (each.away && !old?.away) log("bad", `${name} is unavailable: ${each.message}`);
      else if (old?.away && !each.away && each.state === "AVAILABLE") log("good", `${name} is available again.`);
      else if (old && restarted && !each.away) log("warn", `The process of ${name} was restarted.`);
      else if (each.message && each.message !== old?.message) log("bad", `${name} failed: ${each.message}`);
      else if (each.state !== old?.state) log(each.state === "AVAILABLE" ? "good" : "none", `${name} is ${STATES[each.state] ?? each.state}.`);
    }
    for (const name of before.keys()) if (!now.has(name)) log("none", `${name} was removed.`);
  }
  before = now;
}

export function log(kind, text) {
  const list = $("events");
  if (list.firstElementChild?.className === "quiet") list.replaceChildren();
  const item = make("li", "", make("time", "", new Date().toLocaleTimeString()), make("span", "dot"), text);
  item.children[1].dataset.state = kind;
  list.prepend(item);
  while (list.children.length > EVENTS) list.lastElementChild.remove();
}

/** Take what comes next as the first there is to compare with. */
export function forget() {
  before = null;
}

/** Tell whether a model has versions that are known of. */
export function knows(name) {
  return before !== null && [...before.keys()].some((each) => each.startsWith(`${name}/`));
}
