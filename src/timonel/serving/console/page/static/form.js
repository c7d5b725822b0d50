// The form to try a model: a request from its schema, sent, and what comes of it.

import { limited, pretty } from "./answers.js";
import { $, make, options } from "./dom.js";
import { Images } from "./images.js";
import { ask } from "./key.js";
import { failure, outcome } from "./outcome.js";
import { command, written } from "./request.js";

const NAMES = {
  rows: "predict, by row", columns: "predict, by column", examples: "examples",
};

export class Form {
  constructor() {
    this.model = null; // its name
    this.loaded = ""; // which versions may be chosen
    this.info = null; // what the server tells of the chosen version
    this.images = new Images(() => { this.example(); if (this.images.chosen.length) this.send(); }, () => this.example());
    this.request = null; // what is under way
    this.turn = 0;
    $("version").addEventListener("change", () => this.read());
    $("signature").addEventListener("change", () => this.fill());
    $("request").addEventListener("change", () => this.example());
    $("reset").addEventListener("click", () => { this.images.forget(); this.example(); });
    $("cancel").addEventListener("click", () => this.request?.abort());
    $("curl").addEventListener("click", () => this.copy());
    $("form").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    $("body").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.send(); }
    });
  }

  /** Show the form for a model, as it is now; for none there is no form. */
  offer(model) {
    const serving = model?.versions.filter((each) => each.state === "AVAILABLE").map((each) => each.version) ?? [];
    $("try").hidden = !serving.length;
    if (!serving.length) { this.model = null; this.loaded = ""; return; }
    const loaded = serving.join();
    if (model.name === this.model && loaded === this.loaded) return;
    const same = model.name === this.model;
    const latest = Math.max(...serving);
    const stays = same && serving.includes(Number($("version").value)) && !this.follows;
    this.model = model.name;
    this.loaded = loaded;
    const kept = $("version").value;
    options($("version"), [...serving].sort((a, b) => b - a).map((each) => [String(each), each === latest ? `${each}, latest` : String(each)]));
    $("version").value = stays ? kept : String(latest);
    if (!same) { this.images.forget(); this.clear(); }
    if (!stays || !this.info) this.read(same);
  }

  /** Whether the latest version is chosen, and the next one will be. */
  get follows() {
    return this.info && this.info.version === Math.max(0, ...this.loaded.split(",").map(Number));
  }

  async read(keep = false) {
    const turn = ++this.turn;
    const version = $("version").value;
    try {
      const answer = await ask(`page/models/${encodeURIComponent(this.model)}/${version}`);
      const info = await answer.json();
      if (turn !== this.turn) return;
      if (!answer.ok) throw new Error(info.error ?? `status ${answer.status}`);
      const same = keep && this.info && JSON.stringify(info.signatures) === JSON.stringify(this.info.signatures);
      this.info = info;
      if (same) return;
      options($("signature"), info.signatures.map((each) => [each.name, each.name]));
      this.fill();
    } catch (error) {
      if (turn !== this.turn) return;
      this.info = null;
      this.refuse(`Cannot show the form: ${error.message}`);
    }
  }

  get signature() {
    return this.info?.signatures.find((each) => each.name === $("signature").value);
  }

  fill() {
    const signature = this.signature;
    if (!signature) { this.refuse("This version has no signatures."); return; }
    const choices = Object.entries(signature.verbs).flatMap(([verb, forms]) =>
      Object.keys(forms).map((form) => [`${verb} ${form}`, verb === "predict" ? NAMES[form] : `${verb}, ${NAMES[form]}`]));
    options($("request"), choices);
    this.refuse(choices.length ? "" : `This signature ${signature.why_not}.`);
    const rows = [["Inputs", signature.inputs], ["Outputs", signature.outputs]].flatMap(([title, tensors]) => {
      const shown = tensors.slice(0, 12).map(({ name, what }) => make("span", "tensor", make("b", "", name), ` ${what}`));
      if (tensors.length > shown.length) shown.push(make("span", "quiet", `and ${tensors.length - shown.length} more`));
      return [make("dt", "", title), make("dd", "", ...shown)];
    });
    $("tensors").replaceChildren(...rows);
    this.images.offer(signature.image !== null);
    this.example();
  }

  refuse(why) {
    $("why-not").textContent = why;
    $("why-not").hidden = !why;
    for (const id of ["send", "body", "curl", "reset"]) $(id).disabled = Boolean(why);
  }

  /** Write the example of the chosen request into the editor. */
  example() {
    const [verb, form] = $("request").value.split(" ");
    const found = this.signature?.verbs[verb]?.[form];
    if (!found) { $("body").value = ""; return; }
    let example = found;
    if (this.images.chosen.length && verb === "predict") {
      const images = this.images.chosen.map(({ name }) => ({ $image: name }));
      const { instances, inputs, ...rest } = found;
      example = form === "rows" ? { ...rest, instances: images } : { ...rest, inputs: images };
    }
    $("body").value = pretty(example);
    const large = $("body").value.includes('"$fill"');
    $("hint").textContent = large
      ? "$fill is a tensor of $shape with one value; replace it with your own numbers."
      : this.signature.image !== null ? "$image is a chosen file; {\"b64\": ...} contains bytes of your own."
      : this.signature.made_up ? "The values are made up: fill in your own, such as a date for a column of dates. Ctrl+Enter sends." : "Ctrl+Enter sends.";
  }

  clear() {
    this.info = null;
    this.request?.abort();
    this.images.offer(false); // until it is known whether this model takes images
    $("answer").replaceChildren(make("p", "quiet", "The response appears here."));
  }

  get address() {
    const [verb] = $("request").value.split(" ");
    return `v1/models/${encodeURIComponent(this.model)}/versions/${this.info.version}:${verb}`;
  }

  async send() {
    if (this.request || $("send").disabled || !this.info) return;
    const answer = $("answer");
    let body;
    try {
      body = written($("body").value, this.images);
    } catch (error) {
      answer.replaceChildren(failure("Invalid request", error.message));
      $("body").focus();
      return;
    }
    const mine = (this.request = new AbortController());
    const images = this.images.namedIn($("body").value);
    answer.setAttribute("aria-busy", "true");
    $("send").disabled = true;
    $("cancel").hidden = false;
    const began = performance.now();
    try {
      const got = await ask(this.address, {
        method: "POST", body, signal: mine.signal, headers: { "Content-Type": "application/json" },
      });
      const text = await limited(got, mine);
      const took = performance.now() - began;
      answer.replaceChildren(...outcome(got, text, took, this.info, images));
    } catch (error) {
      const why = mine.signal.aborted && !error.kept ? "Cancelled." : error.message;
      answer.replaceChildren(failure("No response", why));
    } finally {
      this.request = null;
      answer.setAttribute("aria-busy", "false");
      $("send").disabled = false;
      $("cancel").hidden = true;
    }
  }

  async copy() {
    if (!this.info) return;
    let body = null;
    try {
      body = written($("body").value, this.images);
    } catch { /* No JSON: what is sent is up to who uses the command. */ }
    const text = command(new URL(this.address, document.baseURI).href, body);
    try {
      await navigator.clipboard.writeText(text);
      this.said("Copied; add your key with -H 'Authorization: Bearer ...' if the server asks for one.");
    } catch {
      $("answer").replaceChildren(make("pre", "", text));
    }
  }

  said(text) {
    $("hint").textContent = text;
  }
}
