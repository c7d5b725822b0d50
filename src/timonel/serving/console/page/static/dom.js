// Elements of the page.

export const $ = (id) => document.getElementById(id);

/** Return an element with a class and content, which is never read as HTML. */
export function make(name, kind = "", ...content) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.append(...content);
  return made;
}

/** Give a list its choices, and keep what is chosen if it is still among them. */
export function options(select, choices) {
  const kept = select.value;
  select.replaceChildren(...choices.map(([value, label]) => new Option(label, value)));
  if (choices.some(([value]) => value === kept)) select.value = kept;
  select.disabled = choices.length < 2;
}
