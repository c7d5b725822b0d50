// The list of models, with how each does now.

import { milliseconds, short } from "./charts.js";
import { $, make } from "./dom.js";

/** Show the models and how they do; `choose` is called with the name of one that is clicked. */
export function list(models, { chosen, choose }) {
  const entries = models.map((model) => ({ name: model.name, label: model.name, now: model.now, state: worst(model) }));
  if (models.length > 1) entries.unshift({ name: "", label: "All models", now: null, state: null });
  const shown = [...$("models").children];
  if (shown.length !== entries.length || entries.some((each, i) => shown[i].dataset.name !== each.name)) {
    const focus = document.activeElement?.closest?.("#models li")?.dataset.name;
    $("models").replaceChildren(...entries.map((each) => entry(each, choose)));
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

function entry(each, choose) {
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
  if (serving.length) return { kind: "bad", text: "its process is unavailable" };
  if (model.versions.some((each) => each.state === "LOADING")) return { kind: "warn", text: "loading" };
  return { kind: "bad", text: "not serving" };
}
