// What came of a request: the answer as bars and JSON, or why there is none.

import { laidOut, parsed, percent, rowsOf, scoresOf } from "./answers.js";
import { make } from "./dom.js";

const WRITTEN = 20000, TOP = 5, MOST_ROWS = 16;

/** Return what is shown of an answer of a version, with `images` in front of their rows. */
export function outcome(got, text, took, { version, classes }, images) {
  const size = text.length > 2000 ? `, ${(text.length / 1000).toFixed(0)} kB` : "";
  const head = make("p", "outcome", make("b", got.ok ? "good" : "bad", got.ok ? "Answered" : `Error ${got.status}`), ` in ${took < 10 ? took.toFixed(1) : took.toFixed(0)} ms${size}, version ${version}`);
  const content = parsed(text);
  if (!got.ok) {
    return [head, make("p", "why", typeof content?.error === "string" ? content.error : text.slice(0, 2000) || got.statusText)];
  }
  const rows = rowsOf(content);
  const drawn = rows.slice(0, MOST_ROWS).map((row, i) => bars(row, classes, rows.length > 1 ? `${i + 1}` : "", images[i]));
  const raw = make("pre", "", text.length > WRITTEN ? `${text.slice(0, WRITTEN)}\n… ${text.length - WRITTEN} characters more` : laidOut(content, text));
  raw.tabIndex = 0;
  raw.setAttribute("role", "region");
  raw.setAttribute("aria-label", "The answer as JSON");
  const details = make("details", "", make("summary", "", "JSON"), raw);
  details.open = !drawn.some(Boolean);
  return [head, ...drawn.filter(Boolean), details];
}

/** Return one row's classes as bars; nothing where there are no scores. */
function bars(row, classes, label, image) {
  const scores = scoresOf(row, classes);
  if (!scores) return null;
  const list = make("ol", "bars");
  for (const [name, score] of scores.slice(0, TOP)) {
    const meter = make("progress");
    meter.max = 1;
    meter.value = Math.max(0, Math.min(1, score));
    meter.setAttribute("aria-label", name);
    list.append(make("li", "", make("span", "class", name), meter, make("span", "score", percent(score, scores))));
  }
  const box = make("div", "row");
  if (image) {
    const picture = make("img");
    picture.src = image.url;
    picture.alt = image.name;
    box.append(picture);
  } else if (label) box.append(make("span", "quiet", label));
  box.append(list);
  return box;
}

export function failure(what, why) {
  return make("p", "outcome", make("b", "bad", what), ` ${why}`);
}
