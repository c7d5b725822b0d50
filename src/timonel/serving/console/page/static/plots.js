// The plots of the last minutes, which share one cursor.

import { Chart, milliseconds, short } from "./charts.js";
import { $ } from "./dom.js";

const charts = {
  latency: new Chart($("chart-latency"), {
    title: "Latency",
    format: milliseconds,
    empty: "no requests yet",
    series: [{ key: "p99", label: "p99" }, { key: "p95", label: "p95" }, { key: "p50", label: "p50" }],
  }),
  rate: new Chart($("chart-rate"), {
    title: "Requests per second",
    format: (value) => short(value),
    empty: "waiting for the first point",
    series: [{ key: "rate", label: "answered", area: true }, { key: "errors", label: "errors" }],
  }),
  stages: new Chart($("chart-stages"), {
    title: "Time per stage",
    format: milliseconds,
    empty: "no requests yet",
    stacked: true,
    series: [
      { key: "compute", label: "compute" }, { key: "queue", label: "queue" },
      { key: "decode", label: "decode" }, { key: "encode", label: "encode" },
    ],
  }),
  batch: new Chart($("chart-batch"), {
    title: "Rows per batch",
    format: (value) => short(value),
    empty: "no batches yet",
    series: [{ key: "batch", label: "mean", area: true }],
  }),
};
for (const chart of Object.values(charts)) {
  chart.onHover = (index) => Object.values(charts).forEach((each) => each.mark(index));
}

export function plot(history) {
  for (const chart of Object.values(charts)) chart.show(history);
}
