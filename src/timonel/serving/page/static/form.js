// The form to try a model: a request from its schema, images, and the answer as bars or JSON.

import { laidOut, limited, parsed, percent, pretty, rowsOf, scoresOf } from "./answers.js";

const WRITTEN = 20000, MOST_ELEMENTS = 2e7, TOP = 5, IMAGES = 16;
const NAMES = {
  rows: "predict, by row", columns: "predict, by column", examples: "examples",
};
const $ = (id) => document.getElementById(id);

export class Form {
  constructor(ask, make) {
    this.ask = ask;
    this.make = make;
    this.model = null; // its name
    this.loaded = ""; // which versions may be chosen
    this.info = null; // what the server tells of the chosen version
    this.images = []; // {name, b64, url}
    this.request = null; // what is under way
    this.turn = 0;
    $("version").addEventListener("change", () => this.read());
    $("signature").addEventListener("change", () => this.fill());
    $("request").addEventListener("change", () => this.example());
    $("reset").addEventListener("click", () => { this.forget(); this.example(); });
    $("cancel").addEventListener("click", () => this.request?.abort());
    $("curl").addEventListener("click", () => this.copy());
    $("form").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    $("body").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.send(); }
    });
    $("files").addEventListener("change", () => { this.take($("files").files); $("files").value = ""; });
    const drop = $("drop");
    for (const kind of ["dragenter", "dragover"]) {
      drop.addEventListener(kind, (event) => { event.preventDefault(); drop.dataset.over = ""; });
    }
    for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => delete drop.dataset.over);
    drop.addEventListener("drop", (event) => { event.preventDefault(); this.take(event.dataTransfer.files); });
    document.addEventListener("paste", (event) => {
      if (!drop.hidden && event.clipboardData.files.length) this.take(event.clipboardData.files);
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
    if (!same) { this.forget(); this.clear(); }
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
      const answer = await this.ask(`page/models/${encodeURIComponent(this.model)}/${version}`);
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
      this.refuse(`The form cannot be made: ${error.message}`);
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
    const rows = [["Takes", signature.inputs], ["Gives", signature.outputs]].flatMap(([title, tensors]) => {
      const shown = tensors.slice(0, 12).map(({ name, what }) => this.make("span", "tensor", this.make("b", "", name), ` ${what}`));
      if (tensors.length > shown.length) shown.push(this.make("span", "quiet", `and ${tensors.length - shown.length} more`));
      return [this.make("dt", "", title), this.make("dd", "", ...shown)];
    });
    $("tensors").replaceChildren(...rows);
    $("drop").hidden = signature.image === null;
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
    if (this.images.length && verb === "predict") {
      const images = this.images.map(({ name }) => ({ $image: name }));
      const { instances, inputs, ...rest } = found;
      example = form === "rows" ? { ...rest, instances: images } : { ...rest, inputs: images };
    }
    $("body").value = pretty(example);
    const large = $("body").value.includes('"$fill"');
    $("hint").textContent = large
      ? "$fill stands for a tensor of $shape, all of one value; write your own numbers in its place."
      : this.signature.image !== null ? "$image stands for a chosen file; {\"b64\": ...} for bytes of your own." : "Ctrl+Enter sends.";
  }

  async take(files) {
    for (const file of [...files].slice(0, IMAGES)) {
      if (file.type && !file.type.startsWith("image/")) continue;
      const name = this.images.some((each) => each.name === file.name) ? `${this.images.length + 1}-${file.name}` : file.name;
      this.images.push({ name, b64: base64(await file.arrayBuffer()), url: URL.createObjectURL(file) });
    }
    while (this.images.length > IMAGES) URL.revokeObjectURL(this.images.shift().url);
    this.thumbs();
    this.example();
    if (this.images.length) this.send();
  }

  thumbs() {
    $("thumbs").replaceChildren(...this.images.map((image) => {
      const picture = this.make("img");
      picture.src = image.url;
      picture.alt = image.name;
      const remove = this.make("button", "plain", "Remove");
      remove.type = "button";
      remove.setAttribute("aria-label", `Remove ${image.name}`);
      remove.addEventListener("click", () => {
        URL.revokeObjectURL(image.url);
        this.images = this.images.filter((each) => each !== image);
        this.thumbs();
        this.example();
      });
      return this.make("li", "", picture, remove);
    }));
  }

  forget() {
    for (const { url } of this.images) URL.revokeObjectURL(url);
    this.images = [];
    this.thumbs();
  }

  clear() {
    this.info = null;
    this.request?.abort();
    $("drop").hidden = true; // until it is known whether this model takes images
    $("answer").replaceChildren(this.make("p", "quiet", "The answer comes here."));
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
      body = JSON.stringify(this.expand(JSON.parse($("body").value)));
    } catch (error) {
      answer.replaceChildren(this.failure("This is no JSON that can be sent", error.message));
      $("body").focus();
      return;
    }
    const mine = (this.request = new AbortController());
    const images = this.images.filter(({ name }) => $("body").value.includes(JSON.stringify(name)));
    answer.setAttribute("aria-busy", "true");
    $("send").disabled = true;
    $("cancel").hidden = false;
    const began = performance.now();
    try {
      const got = await this.ask(this.address, {
        method: "POST", body, signal: mine.signal, headers: { "Content-Type": "application/json" },
      });
      const text = await limited(got, mine);
      const took = performance.now() - began;
      answer.replaceChildren(...this.shown(got, text, took, images));
    } catch (error) {
      const why = mine.signal.aborted && !error.kept ? "It was cancelled." : error.message;
      answer.replaceChildren(this.failure("No answer", why));
    } finally {
      this.request = null;
      answer.setAttribute("aria-busy", "false");
      $("send").disabled = false;
      $("cancel").hidden = true;
    }
  }

  /** Put what they stand for in the place of $image and $fill. */
  expand(value) {
    if (Array.isArray(value)) return value.map((each) => this.expand(each));
    if (value === null || typeof value !== "object") return value;
    if (typeof value.$image === "string") {
      const image = this.images.find(({ name }) => name === value.$image);
      if (!image) throw new Error(`no image named ${value.$image} is chosen`);
      return { b64: image.b64 };
    }
    if ("$fill" in value && Array.isArray(value.$shape)) {
      const count = value.$shape.reduce((a, b) => a * b, 1);
      if (!(count >= 0 && count <= MOST_ELEMENTS)) throw new Error(`$shape asks for ${count} values`);
      return value.$shape.reduceRight((inner, size) => new Array(size).fill(inner), value.$fill);
    }
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, this.expand(each)]));
  }

  shown(got, text, took, images) {
    const size = text.length > 2000 ? `, ${(text.length / 1000).toFixed(0)} kB` : "";
    const head = this.make("p", "outcome", this.make("b", got.ok ? "good" : "bad", got.ok ? "Answered" : `Error ${got.status}`), ` in ${took < 10 ? took.toFixed(1) : took.toFixed(0)} ms${size}, version ${this.info.version}`);
    const content = parsed(text);
    if (!got.ok) {
      return [head, this.make("p", "why", typeof content?.error === "string" ? content.error : text.slice(0, 2000) || got.statusText)];
    }
    const rows = rowsOf(content);
    const drawn = rows.slice(0, IMAGES).map((row, i) => this.row(row, i, rows.length, images[i]));
    const raw = this.make("pre", "", text.length > WRITTEN ? `${text.slice(0, WRITTEN)}\n… ${text.length - WRITTEN} characters more` : laidOut(content, text));
    raw.tabIndex = 0;
    raw.setAttribute("role", "region");
    raw.setAttribute("aria-label", "The answer as JSON");
    const details = this.make("details", "", this.make("summary", "", "JSON"), raw);
    details.open = !drawn.some(Boolean);
    return [head, ...drawn.filter(Boolean), details];
  }

  /** Return one row's classes as bars; nothing where there are no scores. */
  row(row, index, count, image) {
    const scores = scoresOf(row, this.info.classes);
    if (!scores) return null;
    const list = this.make("ol", "bars");
    for (const [name, score] of scores.slice(0, TOP)) {
      const meter = this.make("progress");
      meter.max = 1;
      meter.value = Math.max(0, Math.min(1, score));
      meter.setAttribute("aria-label", name);
      list.append(this.make("li", "", this.make("span", "class", name), meter, this.make("span", "score", percent(score, scores))));
    }
    const box = this.make("div", "row");
    if (image) {
      const picture = this.make("img");
      picture.src = image.url;
      picture.alt = image.name;
      box.append(picture);
    } else if (count > 1) box.append(this.make("span", "quiet", `${index + 1}`));
    box.append(list);
    return box;
  }

  failure(what, why) {
    return this.make("p", "outcome", this.make("b", "bad", what), ` ${why}`);
  }

  async copy() {
    if (!this.info) return;
    const lead = `curl ${quoted(new URL(this.address, document.baseURI).href)} -H 'Content-Type: application/json'`;
    let text;
    try {
      const body = JSON.stringify(this.expand(JSON.parse($("body").value)));
      text = body.length < 20000 ? `${lead} -d ${quoted(body)}` : `${lead} -d @request.json`;
    } catch { text = `${lead} -d @request.json`; }
    try {
      await navigator.clipboard.writeText(text);
      this.said("Copied; add your key with -H 'Authorization: Bearer ...' if the server asks for one.");
    } catch {
      $("answer").replaceChildren(this.make("pre", "", text));
    }
  }

  said(text) {
    $("hint").textContent = text;
  }
}

function options(select, choices) {
  const kept = select.value;
  select.replaceChildren(...choices.map(([value, label]) => new Option(label, value)));
  if (choices.some(([value]) => value === kept)) select.value = kept;
  select.disabled = choices.length < 2;
}

function base64(buffer) {
  const bytes = new Uint8Array(buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(text);
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
