// Plots over time, drawn as SVG. Values that are missing leave a gap.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 20, HEIGHT = 168;

/** Return a number in three digits or so, for people. */
export function short(value, unit = "") {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  let text;
  if (size >= 1e6) text = `${trim((value / 1e6).toPrecision(3))}M`;
  else if (size >= 1e4) text = `${trim((value / 1e3).toPrecision(3))}k`;
  else if (size >= 100 || value === 0) text = String(Math.round(value));
  else text = trim(value.toPrecision(size < 1 ? 2 : 3));
  return unit ? `${text} ${unit}` : text;
}

/** Return milliseconds as people say them. */
export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value >= 1000) return short(value / 1000, "s");
  return value < 1 && value > 0 ? short(value * 1000, "µs") : short(value, "ms");
}

function trim(text) {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : String(Number(text));
}

/** Return the largest value of an axis that ends on a round number, and its steps. */
export function ticks(most) {
  if (!(most > 0)) return [0, 1];
  const raw = most / 3;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= raw);
  const found = [];
  for (let at = 0; at < most + step * 0.999; at += step) found.push(Number(at.toPrecision(6)));
  return found;
}

export class Chart {
  /**
   * @param {HTMLElement} figure  What it fills.
   * @param {{title: string, format: (value: number?) => string, stacked?: boolean,
   *          series: {key: string, kind?: string, label: string, area?: boolean}[], empty: string}} options
   */
  constructor(figure, options) {
    this.options = options;
    this.data = { at: [] };
    this.hover = null;
    this.onHover = () => {};
    const caption = document.createElement("figcaption");
    const title = document.createElement("h3");
    title.textContent = options.title;
    const legend = document.createElement("ul");
    legend.className = "legend";
    this.values = options.series.map((each, index) => {
      const item = document.createElement("li");
      item.className = `s-${each.kind ?? each.key}`;
      const value = document.createElement("b");
      value.textContent = "–";
      item.append(element("i"), `${each.label} `, value);
      legend.append(item);
      return value;
    });
    caption.append(title, legend);
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("height", HEIGHT);
    figure.append(caption, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.onHover(this.index(event)));
    this.svg.addEventListener("pointerleave", () => this.onHover(null));
    new ResizeObserver(() => this.draw()).observe(figure);
  }

  /** Take new data: columns by the series' keys, and `at` in seconds. */
  show(data) {
    this.data = data;
    this.draw();
  }

  /** Mark one moment in all plots; null for none. */
  mark(index) {
    this.hover = index;
    this.draw();
  }

  index(event) {
    const { at } = this.data;
    if (!at.length) return null;
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / Math.max(1, box.width - LEFT - RIGHT);
    const time = this.first + share * (this.last - this.first);
    let best = 0;
    at.forEach((each, i) => { if (Math.abs(each - time) < Math.abs(at[best] - time)) best = i; });
    return best;
  }

  draw() {
    const { at } = this.data;
    const { series, stacked, format, title, empty } = this.options;
    const width = Math.max(160, Math.round(this.svg.clientWidth || 160));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.last = at.length ? at[at.length - 1] : 0;
    this.first = Math.min(at.length ? at[0] : 0, this.last - 60);
    const columns = series.map((each) => this.data[each.key] ?? []);
    const layers = stacked ? stack(columns, at.length) : columns;
    const known = layers.flat().filter((each) => each !== null && each !== undefined);
    const steps = ticks(Math.max(0, ...known));
    const top = steps[steps.length - 1];
    const x = (time) => LEFT + ((time - this.first) / (this.last - this.first || 1)) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (const step of steps) {
      parts.push(shape("path", { class: "grid", d: `M${LEFT} ${y(step).toFixed(1)}H${width - RIGHT}` }));
      parts.push(words(LEFT - 6, y(step) + 3.5, format(step), "end"));
    }
    const span = Math.round(this.last - this.first);
    parts.push(words(LEFT, HEIGHT - 4, at.length ? `${span >= 120 ? `${Math.round(span / 60)} min` : `${span} s`} ago` : "", "start"));
    parts.push(words(width - RIGHT, HEIGHT - 4, at.length ? "now" : "", "end"));
    if (!known.length) {
      parts.push(words((width + LEFT) / 2, HEIGHT / 2, empty, "middle", "empty"));
    }
    layers.forEach((layer, number) => {
      const kind = `${stacked ? "stacked " : ""}s-${series[number].kind ?? series[number].key}`;
      const below = stacked && number ? layers[number - 1] : null;
      const runs = pieces(layer);
      if (stacked || series[number].area) {
        const d = runs.map((run) => area(run, layer, below, at, x, y)).join("");
        parts.push(shape("path", { class: `area ${kind}`, d }));
      }
      const d = runs.map((run) => line(run, layer, at, x, y)).join("");
      parts.push(shape("path", { class: `line ${kind}`, d }));
    });
    const index = this.hover !== null && this.hover < at.length ? this.hover : at.length - 1;
    if (this.hover !== null && index >= 0) {
      parts.push(shape("path", { class: "cursor", d: `M${x(at[index]).toFixed(1)} ${TOP}V${HEIGHT - BOTTOM}` }));
    }
    this.svg.replaceChildren(...parts);
    const told = series.map((each, number) => {
      const text = format(index >= 0 ? columns[number][index] ?? null : null);
      this.values[number].textContent = text;
      return `${each.label} ${text === "–" ? "unknown" : text}`;
    });
    this.svg.setAttribute("aria-label", `${title}, ${known.length ? "now: " + told.join(", ") : empty}`);
  }
}

function stack(columns, length) {
  const sums = new Array(length).fill(0);
  return columns.map((column) => column.map((value, i) => {
    if (value === null || value === undefined) return null;
    sums[i] += value;
    return sums[i];
  }));
}

/** Return the stretches [from, to] of a column without a gap. */
function pieces(column) {
  const found = [];
  let from = -1;
  for (let i = 0; i <= column.length; i++) {
    const there = i < column.length && column[i] !== null && column[i] !== undefined;
    if (there && from < 0) from = i;
    if (!there && from >= 0) { found.push([from, i - 1]); from = -1; }
  }
  return found;
}

function line([from, to], column, at, x, y) {
  let d = `M${x(at[from]).toFixed(1)} ${y(column[from]).toFixed(1)}`;
  if (from === to) return `${d}h0`;
  for (let i = from + 1; i <= to; i++) d += `L${x(at[i]).toFixed(1)} ${y(column[i]).toFixed(1)}`;
  return d;
}

function area([from, to], column, below, at, x, y) {
  let d = line([from, to], column, at, x, y);
  for (let i = to; i >= from; i--) d += `L${x(at[i]).toFixed(1)} ${y(below?.[i] ?? 0).toFixed(1)}`;
  return `${d}Z`;
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function words(x, y, text, anchor, kind = "tick") {
  const made = shape("text", { x: x.toFixed(1), y: y.toFixed(1), "text-anchor": anchor, class: kind });
  made.textContent = text;
  return made;
}

function element(name) {
  return document.createElement(name);
}
