// The images chosen for a request: picked, dropped or pasted, and shown as thumbnails.

import { $, make } from "./dom.js";

const MOST = 16;

export class Images {
  /** `added` and `removed` are called when people have done so. */
  constructor(added, removed) {
    this.chosen = []; // {name, b64, url}
    this.added = added;
    this.removed = removed;
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

  /** Show or hide where images are chosen. */
  offer(wanted) {
    $("drop").hidden = !wanted;
  }

  find(name) {
    return this.chosen.find((each) => each.name === name);
  }

  /** Return those that a request's text names. */
  namedIn(text) {
    return this.chosen.filter(({ name }) => text.includes(JSON.stringify(name)));
  }

  async take(files) {
    for (const file of [...files].slice(0, MOST)) {
      if (file.type && !file.type.startsWith("image/")) continue;
      const name = this.find(file.name) ? `${this.chosen.length + 1}-${file.name}` : file.name;
      this.chosen.push({ name, b64: base64(await file.arrayBuffer()), url: URL.createObjectURL(file) });
    }
    while (this.chosen.length > MOST) URL.revokeObjectURL(this.chosen.shift().url);
    this.show();
    this.added();
  }

  show() {
    $("thumbs").replaceChildren(...this.chosen.map((image) => {
      const picture = make("img");
      picture.src = image.url;
      picture.alt = image.name;
      const remove = make("button", "plain", "Remove");
      remove.type = "button";
      remove.setAttribute("aria-label", `Remove ${image.name}`);
      remove.addEventListener("click", () => {
        URL.revokeObjectURL(image.url);
        this.chosen = this.chosen.filter((each) => each !== image);
        this.show();
        this.removed();
      });
      return make("li", "", picture, remove);
    }));
  }

  forget() {
    for (const { url } of this.chosen) URL.revokeObjectURL(url);
    this.chosen = [];
    this.show();
  }
}

function base64(buffer) {
  const bytes = new Uint8Array(buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(text);
}
