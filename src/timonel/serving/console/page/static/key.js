// The key of this tab: asked for, kept until the tab is closed, and sent with each request.

import { $ } from "./dom.js";

const KEY = "timonel.key";

/** Ask the server; addresses are relative, so that the page works behind a proxy's prefix. */
export async function ask(address, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  return fetch(address, { ...options, headers, cache: "no-store", credentials: "same-origin" });
}

export function hasKey() {
  return Boolean(sessionStorage.getItem(KEY));
}

export function openKey(why) {
  $("key-why").textContent = why || "The key is kept in this tab until it is closed.";
  $("key").value = "";
  if (!$("key-dialog").open) $("key-dialog").showModal();
}

export function asksForKey() {
  return $("key-dialog").open;
}

/** Let people set the key: `changed` is called with each that is used or forgotten, `closed` then. */
export function offerKey(changed, closed) {
  const use = (key) => {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
    changed();
  };
  $("key-open").addEventListener("click", () => openKey(""));
  $("key-close").addEventListener("click", () => $("key-dialog").close());
  $("key-forget").addEventListener("click", () => { use(""); $("key-dialog").close(); });
  $("key-form").addEventListener("submit", () => use($("key").value.trim()));
  $("key-dialog").addEventListener("close", closed);
}
