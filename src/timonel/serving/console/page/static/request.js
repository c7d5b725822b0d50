// A request as it is sent, from what was written for people.

const MOST_ELEMENTS = 2e7, IN_A_LINE = 20000;

/** Return the JSON to send for what stands in the editor. */
export function written(text, images) {
  return JSON.stringify(expand(JSON.parse(text), images));
}

/** Put what they stand for in the place of $image and $fill. */
function expand(value, images) {
  if (Array.isArray(value)) return value.map((each) => expand(each, images));
  if (value === null || typeof value !== "object") return value;
  if (typeof value.$image === "string") {
    const image = images.find(value.$image);
    if (!image) throw new Error(`no image named ${value.$image} is chosen`);
    return { b64: image.b64 };
  }
  if ("$fill" in value && Array.isArray(value.$shape)) {
    const count = value.$shape.reduce((a, b) => a * b, 1);
    if (!(count >= 0 && count <= MOST_ELEMENTS)) throw new Error(`$shape has too many values: ${count}`);
    return value.$shape.reduceRight((inner, size) => new Array(size).fill(inner), value.$fill);
  }
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, expand(each, images)]));
}

/** Return a command that sends the same; where there is no body, or a large one, from a file. */
export function command(url, body) {
  const lead = `curl ${quoted(url)} -H 'Content-Type: application/json'`;
  return body !== null && body.length < IN_A_LINE ? `${lead} -d ${quoted(body)}` : `${lead} -d @request.json`;
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
