"use strict";
// Configurations of one model by their speed: one chart for each of what they differ in.

const LEAST_VALUES = 3; // of two, the table says it

function showSweeps() {
  at("sweep-boards").replaceChildren();
  return Promise.all(report.sweeps.flatMap((board) => {
    const table = element("table");
    const timed = board.lines.filter((line) => known(line.tokens_per_second_per_gpu));
    const drawn = board.differing.filter((name) => new Set(timed.map((line) => line.values[name])).size >= LEAST_VALUES);
    const charts = drawn.map(() => element("div", { class: "chart" }));
    const figures = drawn.map((name, number) => element("figure", {}, element("figcaption", {}, name), charts[number]));
    at("sweep-boards").append(element("h3", {}, board.title), element("div", { class: "scroll" }, table),
      element("p", {}, "Fastest: ", element("code", {}, board.command)), element("div", { class: "two" }, figures));
    sweepTable(table, board);
    return drawn.map((name, number) => drawDimension(charts[number], board, name));
  }));
}

function sweepTable(table, board) {
  const shared = (line) => board.lines.filter(({ place }) => place === line.place).length > 1;
  const columns = [
    column("place", "number", (line) => (known(line.place) ? line.place : Infinity), (line) => (known(line.place) ? `${line.place}${shared(line) ? "=" : ""}` : "\u2013")),
    ...board.differing.map((name) => column(name, "head", (line) => line.values[name])),
    column("runs", "number", (line) => line.runs),
    column("step\ns", "number", (line) => line.step_seconds, (line) => fixed(line.step_seconds, 3)),
    column("tokens/s/GPU", "number", (line) => line.tokens_per_second_per_gpu, (line) => whole(line.tokens_per_second_per_gpu)),
    column("behind\n%", "number", (line) => line.behind, (line) => percent(line.behind)),
    column("outcome", "long", (line) => line.outcome),
  ];
  sortedTable(table, columns, board.lines);
}

function drawDimension(place, board, name) {
  const timed = board.lines.filter((line) => known(line.tokens_per_second_per_gpu));
  const values = timed.map((line) => ({
    value: line.values[name], rate: line.tokens_per_second_per_gpu, first: line.place === 1,
    low: line.tokens_per_second_per_gpu / (1 + line.interval), high: line.tokens_per_second_per_gpu * (1 + line.interval),
    others: board.differing.filter((other) => other !== name).map((other) => `${other}=${line.values[other]}`).join(" "),
  }));
  const order = [...new Set(values.map(({ value }) => value))].sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
  const x = { field: "value", type: "ordinal", title: name, sort: order, axis: { labelAngle: 0, labelLimit: 120 } };
  const y = (field) => ({ field, type: "quantitative", title: "tokens/s/GPU", scale: { zero: false }, axis: { format: "~s" } });
  const color = { field: "first", type: "nominal", title: null, scale: { domain: [true, false], range: [SERIES[0], SERIES[1]] }, legend: null };
  const tip = tooltip(["others", "with", null, "nominal"], ["value", name, null, "nominal"], ["rate", "tokens/s/GPU", ",.0f"]);
  const spec = {
    height: 200, data: { values }, encoding: { x },
    layer: [
      { mark: { type: "line", strokeWidth: 1.2, color: "var(--quiet)" }, encoding: { y: { ...y("rate"), aggregate: "max" } } },
      { mark: { type: "rule" }, encoding: { y: y("low"), y2: { field: "high" }, color } },
      { mark: { type: "point", filled: true, size: 60 }, encoding: { y: y("rate"), color, tooltip: tip } },
    ],
  };
  return draw(place, spec, `Tokens per second and GPU by ${name}: ${board.title}`);
}
