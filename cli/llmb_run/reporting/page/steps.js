"use strict";
// The charts over the steps of the chosen runs: step time, distribution, loss.

const MOST_LINES = 100;
const MOST_MARKS = 3000; // beyond, lines only: a browser takes seconds for tens of thousands of marks
const MOST_BOXES = 40;
const MOST_NAMED = 7;

function showSteps(runs) {
  const printed = runs.filter((run) => run.steps.index.length);
  const drawn = printed.slice(0, MOST_LINES);
  const named = drawn.length <= MOST_NAMED;
  const one = new Set(drawn.map((run) => run.title)).size === 1;
  const software = (run) => run.software || "unknown software";
  const seriesOf = named ? (run) => run.name : one ? software : (run) => `${run.title || "other logs"}, ${software(run)}`;
  const names = [...new Set(drawn.map(seriesOf))];
  const shownTitle = named ? "run" : one ? "software" : "configuration, software";
  const scales = legendScales(names, shownTitle);
  const view = { runs: drawn, seriesOf, scales, ...axisOf(drawn, one) };
  const rows = drawn.flatMap((run) => run.steps.index.map((index, number) => ({
    run: run.name, series: seriesOf(run), iteration: index, seconds: run.steps.seconds[number], time: run.steps.seconds[number] * view.factor(run), loss: run.steps.loss[number],
  })));
  const thinned = drawn.filter((run) => run.steps.total > run.steps.index.length).length;
  const notes = [`${many(printed.length, "run")} with steps.`];
  if (printed.length > drawn.length) notes.push(`The first ${drawn.length} of them are drawn; filters choose others.`);
  if (thinned) notes.push(`Of ${many(thinned, "run")} not every step is drawn: of each stretch the fastest and the slowest step and the highest loss.`);
  if (!named) notes.push(`With more than ${MOST_NAMED} runs, colors are ${one ? "software" : "configurations and software"}.`);
  notes.push("Drag to move, Shift and the wheel to zoom, double-click to go back.");
  at("charts-title").textContent = filters.title ? `Steps: ${filters.title}` : "Steps: all configurations";
  at("charts-note").textContent = notes.join(" ");
  return Promise.all([
    draw(at("steps"), rows.length && stepSpec(rows, view), rows.length ? "Step time in seconds over iterations, a line for each run" : "No step is on record for these runs."),
    showDistribution({ ...view, runs: printed }),
    showLoss(rows.filter((row) => known(row.loss)), drawn, scales),
  ]);
}

function opacityOf(runs) {
  const usual = runs.length > 60 ? 0.15 : runs.length > 12 ? 0.35 : 0.85;
  return { condition: { param: "hover", value: 1, empty: false }, value: usual };
}

const HOVER = { name: "hover", select: { type: "point", fields: ["run"], on: "pointerover", clear: "pointerout" } };
const ZOOM = { name: "zoom", select: { type: "interval", encodings: ["x", "y"], zoom: "wheel![event.shiftKey]" }, bind: "scales" };

// Step times of one configuration are in seconds; those of several have no common scale but their own medians.
function axisOf(runs, one) {
  const middle = (run) => run.steps.quantiles[3] || median(run.steps.seconds);
  if (one) return { factor: () => 1, title: "step time (s)", references: referencesOf(runs) };
  return { factor: (run) => 100 / middle(run), title: "step time (% of the run's median)", references: [] };
}

// The measured differences are a few percent and warm-up is a multiple: what would flatten the rest is drawn at the top.
function rangeOf({ runs, references, factor }) {
  const measured = runs.filter((run) => run.steps.quantiles.length).map((run) => run.steps.quantiles.map((value) => value * factor(run)));
  if (!measured.length || at("whole-range").checked) return null;
  const ends = references.map((reference) => reference.seconds);
  const low = Math.min(...measured.map((values) => values[1]), ...ends);
  const high = Math.max(...measured.map((values) => values[5]), ...ends);
  const margin = Math.max(0.15 * (high - low), 0.01 * high);
  return [low - margin, high + margin];
}

function windowOf(runs) {
  const windows = [...new Set(runs.map((run) => `${run.result.window.first}-${run.result.window.last}`))];
  return windows.length === 1 ? runs[0].result.window : null;
}

function referencesOf(runs) {
  const found = new Map();
  for (const { result, title } of runs) if (result.reference) found.set(`${title} ${result.reference.seconds}`, { seconds: result.reference.seconds, label: `reference ${Number(result.reference.seconds.toPrecision(5))} s` });
  return found.size <= 3 ? [...found.values()] : [];
}

function stepSpec(rows, view) {
  const { runs, scales, references } = view;
  const range = rangeOf(view);
  const top = range ? range[1] : Infinity;
  const marked = rows.length <= MOST_MARKS;
  const inside = rows.map((row) => ({ ...row, drawn: Math.min(row.time, top), beyond: row.time > top }));
  const y = { field: "drawn", type: "quantitative", title: view.title, scale: { zero: false, nice: !range, ...(range && { domain: range }) } };
  const x = { field: "iteration", type: "quantitative", title: "iteration", axis: { tickMinStep: 1 }, scale: { nice: false } };
  const tips = tooltip(["run", "run", null, "nominal"], ["series", "series", null, "nominal"], ["iteration", "iteration", "d"], ["seconds", "step time (s)", ".4f"]);
  const color = { field: "series", ...scales.color, legend: { symbolType: "stroke", symbolSize: 500 } };
  const measured = windowOf(runs);
  const layer = [];
  if (measured) layer.push({
    data: { values: [{ first: measured.first - 0.5, last: measured.last + 0.5 }] },
    mark: { type: "rect", color: "var(--band)" }, encoding: { x: { field: "first", type: "quantitative" }, x2: { field: "last" } },
  }, {
    data: { values: [{ first: measured.first }] },
    mark: { type: "text", align: "left", dx: -4, y: 8, color: "var(--quiet)", text: "measured" }, encoding: { x: { field: "first", type: "quantitative" } },
  });
  layer.push(
    { mark: { type: "line", strokeWidth: 1.6, clip: true }, params: marked ? [ZOOM] : [ZOOM, HOVER], encoding: { x, y, detail: { field: "run" }, color, ...(!marked && { tooltip: tips.slice(0, 2) }), ...(scales.strokeDash.scale.domain.length > 1 && { strokeDash: { field: "series", ...scales.strokeDash } }), opacity: opacityOf(runs) } },
  );
  if (marked) layer.push({ transform: [{ filter: "!datum.beyond" }], params: [HOVER], mark: { type: "point", filled: true, size: 22, clip: true }, encoding: { x, y, color, opacity: opacityOf(runs), tooltip: tips } });
  if (inside.some((row) => row.beyond)) layer.push({ transform: [{ filter: "datum.beyond" }], mark: { type: "point", shape: "triangle-up", filled: true, size: 45, yOffset: 4 }, encoding: { x, y, color, tooltip: tips } });
  if (references.length) layer.push(
    { data: { values: references }, mark: { type: "rule", strokeDash: [5, 4], clip: true }, encoding: { y: { field: "seconds", type: "quantitative" } } },
    { data: { values: references }, mark: { type: "text", align: "right", baseline: "bottom", x: "width", dx: -2, dy: -2, color: "var(--quiet)", clip: true }, encoding: { y: { field: "seconds", type: "quantitative" }, text: { field: "label" } } },
  );
  return { height: 300, data: { values: inside }, layer };
}

function showDistribution(view) {
  const { seriesOf, scales, references, factor } = view;
  const all = view.runs.filter((run) => run.steps.quantiles.length);
  const shown = all.slice(0, MOST_BOXES);
  const names = ["least", "low", "quarter", "middle", "three", "high", "most"];
  const values = shown.map((run) => ({
    run: run.name, series: seriesOf(run), ...Object.fromEntries(names.map((name, number) => [name, run.steps.quantiles[number] * factor(run)])),
  }));
  const range = rangeOf({ ...view, runs: shown });
  const y = { field: "run", type: "nominal", sort: null, title: null, axis: { labelLimit: 240 } };
  const x = (field) => ({ field, type: "quantitative", title: view.title, scale: { zero: false, nice: !range, ...(range && { domain: range }) } });
  const color = { field: "series", ...scales.color, legend: null };
  const titles = ["fastest", "5 %", "25 %", "median", "75 %", "95 %", "slowest"];
  const tips = tooltip(["run", "run", null, "nominal"], ["series", "series", null, "nominal"], ...names.map((name, number) => [name, titles[number], ".4~f"]));
  const layer = [
    { mark: { type: "rule", clip: true }, encoding: { y, x: x("low"), x2: { field: "high" }, color, tooltip: tips } },
    { mark: { type: "bar", size: 12, clip: true }, encoding: { y, x: x("quarter"), x2: { field: "three" }, color, tooltip: tips } },
    { mark: { type: "tick", color: "var(--paper)", thickness: 2, size: 12, clip: true }, encoding: { y, x: x("middle"), tooltip: tips } },
  ];
  if (references.length) layer.push({ data: { values: references }, mark: { type: "rule", strokeDash: [5, 4] }, encoding: { x: x("seconds") } });
  const which = all.length > shown.length ? `The first ${shown.length} of ${all.length} runs. ` : "";
  const words = `${which}Boxes hold the middle half of a run's steps, lines 90 %; the tick is the median${references.length ? ", the dashed line the reference" : ""}.`;
  at("distribution-note").textContent = values.length ? words : "";
  return draw(at("distribution"), values.length && { height: Math.max(60, 24 * values.length), data: { values }, layer }, values.length ? words : "No step after warm-up.");
}

function showLoss(rows, runs, scales) {
  const marked = rows.length <= MOST_MARKS;
  const tips = tooltip(["run", "run", null, "nominal"], ["series", "series", null, "nominal"], ["iteration", "iteration", "d"], ["loss", "loss (nats per token)", ".5f"]);
  const line = { mark: { type: "line", strokeWidth: 1.6, clip: true }, params: marked ? [ZOOM] : [ZOOM, HOVER], encoding: { detail: { field: "run" }, opacity: opacityOf(runs), ...(!marked && { tooltip: tips.slice(0, 2) }) } };
  const points = { mark: { type: "point", filled: true, size: 18, clip: true }, params: [HOVER], encoding: { opacity: opacityOf(runs), tooltip: tips } };
  const spec = {
    height: 260, data: { values: rows },
    layer: marked ? [line, points] : [line],
    encoding: {
      x: { field: "iteration", type: "quantitative", title: "iteration", axis: { tickMinStep: 1 }, scale: { nice: false } },
      y: { field: "loss", type: "quantitative", title: "loss (nats per token)", scale: { zero: false } },
      color: { field: "series", ...scales.color, legend: null },
    },
  };
  return draw(at("loss"), rows.length && spec, rows.length ? "Loss over iterations, a line for each run" : "No loss is on record for these runs.");
}
