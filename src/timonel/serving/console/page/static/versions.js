// The versions of the chosen model, or of all, with their states.

import { $, make } from "./dom.js";

/** What people call the states. */
export const STATES = {
  START: "waiting", LOADING: "loading", AVAILABLE: "serving", UNLOADING: "unloading", END: "ended",
};

export function versions(models, named) {
  const wanted = models.flatMap((model) => [...model.versions].reverse().map((each) => ({ ...each, model: model.name })));
  // Those that went in good order are of no interest for long.
  const shown = wanted.filter((each) => each.state !== "END" || each.message).slice(0, 24);
  const items = shown.map((each) => {
    const kind = each.away || each.message ? "bad" : each.state === "AVAILABLE" ? "good" : each.state === "END" ? "none" : "warn";
    const label = named ? `${each.model}/${each.version}` : `Version ${each.version}`;
    const item = make("li", "version", make("span", "dot"), make("b", "", label), ` ${each.away ? "unavailable" : each.message && each.state === "END" ? "failed" : STATES[each.state] ?? each.state}`);
    item.dataset.state = kind;
    item.firstChild.dataset.state = kind;
    for (const name of each.labels) item.append(" ", make("span", "tag", name));
    if (each.restarts) item.append(" ", make("span", "tag", `restarts: ${each.restarts}`));
    if (each.message) item.append(make("p", "why", each.message));
    return item;
  });
  const text = items.map((each) => each.outerHTML).join("");
  if ($("versions").dataset.shown !== text) {
    $("versions").dataset.shown = text;
    $("versions").replaceChildren(...items);
  }
}
