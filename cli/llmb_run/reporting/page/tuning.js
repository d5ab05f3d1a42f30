"use strict";
// The course of a tuning: each trial in its turn, the fastest so far as a line, what had no time at the foot.

function showTuning({ conclusion, trials, winner }) {
  const place = element("div", { id: "course" });
  at("verdicts").before(element("section", { id: "tuning" }, element("h2", {}, "Tuning"), element("p", {}, conclusion), element("p", {}, element("code", {}, winner.command)), place));
  const kinds = { base: "base", [winner.title]: "winner" };
  const values = trials.map((trial, number) => ({ run: trial.run_id, number: number + 1, seconds: trial.step_seconds, configuration: trial.configuration, kind: kinds[trial.configuration] || "another", what: trial.full ? `${trial.outcome}, whole run` : trial.outcome }));
  const timed = values.filter((value) => known(value.seconds)), untimed = values.filter((value) => !known(value.seconds));
  let fastest = Infinity;
  for (const value of timed) value.fastest = fastest = Math.min(fastest, value.seconds);
  const scales = legendScales(["base", "winner", "another"], "configuration");
  const x = { field: "number", type: "quantitative", title: "trial", axis: { tickMinStep: 1 }, scale: { nice: false, padding: 10 } };
  const y = { field: "seconds", type: "quantitative", title: "step time (s)", scale: { zero: false } };
  const tooltips = tooltip(["configuration", "configuration", null, "nominal"], ["seconds", "step time (s)", ".4f"], ["what", "outcome", null, "nominal"], ["run", "run", null, "nominal"]);
  const layer = [
    { data: { values: timed }, mark: { type: "line", interpolate: "step-after", color: "var(--line)" }, encoding: { x, y: { ...y, field: "fastest" } } },
    { data: { values: timed }, mark: { type: "point", filled: true, size: 60 }, encoding: { x, y, color: { field: "kind", ...scales.color }, shape: { field: "kind", ...scales.shape }, tooltip: tooltips } },
    ...(untimed.length ? [{ data: { values: untimed }, mark: { type: "point", shape: "cross", size: 60, color: "var(--fail)" }, encoding: { x, y: { value: { expr: "height - 6" } }, tooltip: tooltips } }] : []), // without any, Vega warns of an axis without extent
  ];
  return draw(place, timed.length && { height: 220, layer }, timed.length ? "Step time of each trial in its turn; the line is the fastest so far, crosses had no time" : "No trial had a step time.");
}
