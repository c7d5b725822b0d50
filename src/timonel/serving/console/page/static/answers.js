// What an answer says: JSON as text, rows, and the classes with their scores.

const LARGEST_ANSWER = 8e6;

/** Return JSON with what is short, and lists of plain values, on one line. */
export function pretty(value, indent = "") {
  const flat = spaced(value);
  const plain = (each) => each === null || typeof each !== "object";
  if (plain(value) || (indent && flat.length < 60) || (Array.isArray(value) && value.every(plain))) return flat;
  const more = `${indent}  `;
  if (Array.isArray(value)) return `[\n${value.map((each) => more + pretty(each, more)).join(",\n")}\n${indent}]`;
  const members = Object.entries(value).map(([name, each]) => `${more}${JSON.stringify(name)}: ${pretty(each, more)}`);
  return `{\n${members.join(",\n")}\n${indent}}`;
}

function spaced(value) {
  if (Array.isArray(value)) return `[${value.map(spaced).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${spaced(each)}`).join(", ")}}`;
}

export function laidOut(content, text) {
  return content === undefined ? text : pretty(content);
}

/** Return an answer's text, up to a size that a page can bear. */
export async function limited(got, controller) {
  const reader = got.body.getReader();
  const parts = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > LARGEST_ANSWER) {
      controller.abort();
      const error = new Error("The response is too large for this page; use a client of your own.");
      error.kept = true;
      throw error;
    }
    parts.push(value);
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) { whole.set(part, at); at += part.length; }
  return new TextDecoder().decode(whole);
}

/** Parse an answer; NaN and the infinities, which TensorFlow Serving writes, become null. */
export function parsed(text) {
  for (const attempt of [text, text.replaceAll(/(?<=[\[,:\s])-?(?:NaN|Infinity)(?=[\],}\s])/g, "null")]) {
    try { return JSON.parse(attempt); } catch { /* the next one */ }
  }
  return undefined;
}

export function rowsOf(content) {
  if (Array.isArray(content?.predictions)) return content.predictions;
  if (Array.isArray(content?.results)) return content.results;
  const outputs = content?.outputs;
  if (Array.isArray(outputs)) return outputs;
  if (!outputs || typeof outputs !== "object") return [];
  const columns = Object.entries(outputs).filter(([, column]) => Array.isArray(column));
  const count = Math.max(0, ...columns.map(([, column]) => column.length));
  return Array.from({ length: count }, (_, i) => Object.fromEntries(columns.map(([name, column]) => [name, column[i]])));
}

/** Return [class, score] of one row, best first; nothing if it has no scores. */
export function scoresOf(row, classes) {
  if (Array.isArray(row) && row.length && row.every((each) => Array.isArray(each) && each.length === 2 && typeof each[1] === "number")) {
    return sorted(row.map(([label, score], i) => [String(label || i), score]));
  }
  const candidates = Array.isArray(row) ? [["", row]] : Object.entries(row ?? {}).filter(([, value]) => Array.isArray(value));
  const vectors = candidates.filter(([, value]) => value.length > 1 && value.every((each) => typeof each === "number"));
  const found = vectors.find(([name]) => /score|prob/i.test(name)) ?? vectors.find(([, value]) => value.length === classes.length) ?? vectors.find(([, value]) => isDistribution(value));
  if (!found) return null;
  const named = Array.isArray(row?.classes) && row.classes.length === found[1].length ? row.classes : classes;
  return sorted(found[1].map((score, i) => [named.length === found[1].length ? String(named[i]) : `class ${i}`, score]));
}

function isDistribution(values) {
  return values.every((each) => each >= 0) && Math.abs(values.reduce((a, b) => a + b, 0) - 1) < 1e-3;
}

function sorted(pairs) {
  return pairs.sort((a, b) => b[1] - a[1]);
}

export function percent(score, all) {
  return all.every(([, each]) => each >= 0 && each <= 1) ? `${(score * 100).toFixed(score > 0.9995 || score < 0.0005 ? 0 : 1)} %` : score.toPrecision(4);
}
