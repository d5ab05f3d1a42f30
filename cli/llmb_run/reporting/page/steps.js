"use strict";
// The charts over the steps of the chosen runs: step time, loss.

const MOST_LINES = 100;
const MOST_MARKS = 3000; // beyond, lines only: a browser takes seconds for tens of thousands of marks
const MOST_NAMED = 20; // lines with a label each; beyond, those of the slowest runs have one

function showSteps(runs) {
  const printed = runs.filter((run) => run.steps.index.length);
  const drawn = printed.slice(0, MOST_LINES);
  const named = drawn.length <= MOST_NAMED;
  const one = new Set(drawn.map((run) => run.title)).size === 1;
  const software = (run) => run.software || "unknown software";
  const seriesOf = named ? (run) => run.name : one ? software : (run) => `${run.title || "other logs"}\n${software(run)}`;
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
  if (!named) notes.push(`With more than ${MOST_NAMED} runs, colors are ${one ? "software" : "configurations and software"}, and the slowest runs are named.`);
  if (drawn.some(isSlow)) notes.push(`${SLOW} ran with a slow node.`);
  at("charts-title").textContent = filters.title ? `Steps: ${filters.title}` : "Steps: all configurations";
  at("charts-note").replaceChildren(notes.join(" "), element("span", { class: "screen" }, " A click on a step leads to its run. Drag to move, Shift and the wheel to zoom, double-click to go back."));
  return Promise.all([
    draw(at("steps"), rows.length && stepSpec(rows, view), rows.length ? "Step time over iterations, a line for each run" : "No step is on record for these runs."),
    showLoss(rows.filter((row) => known(row.loss)), view),
  ]);
}

const labelOf = (run) => run.name + (isSlow(run) ? ` ${SLOW}` : "");

// Where the lines end, and of which runs it is said: of all, or of the slowest.
function endsOf(rows, field, { runs, seriesOf }) {
  const last = new Map(rows.map((row) => [row.run, row]));
  const end = rows.reduce((most, row) => Math.max(most, row.iteration), 0);
  const slowest = runs.length <= MOST_NAMED ? runs : [...runs].sort((one, other) => middleOf(other) - middleOf(one)).slice(0, MOST_NAMED / 2);
  return slowest.filter((run) => last.has(run.name)).map((run) => {
    const { iteration, [field]: level } = last.get(run.name);
    return { run: run.name, label: labelOf(run), series: seriesOf(run), level, iteration, early: iteration < end };
  });
}

const middleOf = (run) => run.steps.quantiles[1] || median(run.steps.seconds);
const heightFor = (ends, least) => Math.max(least, LABEL * ends.length);

function opacityOf(runs) {
  const usual = runs.length > 60 ? 0.15 : runs.length > MOST_NAMED ? 0.35 : 0.85;
  return { condition: { param: "hover", value: 1, empty: false }, value: usual };
}

const HOVER = { name: "hover", select: { type: "point", fields: ["run"], on: "pointerover", clear: "pointerout" } };
const ZOOM = { name: "zoom", select: { type: "interval", encodings: ["x", "y"], zoom: "wheel![event.shiftKey]" }, bind: "scales" };

// Step times of one configuration are in seconds; those of several have no common scale but their own medians.
function axisOf(runs, one) {
  if (one) return { factor: () => 1, title: "step time (s)", references: referencesOf(runs) };
  return { factor: (run) => 100 / middleOf(run), title: "step time (% of the run's median)", references: [] };
}

// The measured differences are a few percent and warm-up is a multiple: what would flatten the rest is drawn at the top.
function rangeOf({ runs, references, factor }) {
  const measured = runs.filter((run) => run.steps.quantiles.length).map((run) => run.steps.quantiles.map((value) => value * factor(run)));
  if (!measured.length || at("whole-range").checked) return extent(runs.flatMap((run) => run.steps.seconds.map((value) => value * factor(run))));
  return extent([...measured.flatMap((values) => [values[0], values[2]]), ...references.map((reference) => reference.seconds)]);
}

function extent(values) {
  const low = values.reduce((one, other) => Math.min(one, other), Infinity);
  const high = values.reduce((one, other) => Math.max(one, other), -Infinity);
  const margin = Math.max(0.1 * (high - low), 0.005 * Math.abs(high));
  return [low - margin, high + margin];
}

function windowOf(runs) {
  const windows = [...new Set(runs.map((run) => `${run.result.window.first}-${run.result.window.last}`))];
  return windows.length === 1 ? runs[0].result.window : null;
}

function referencesOf(runs) {
  const found = new Map();
  for (const { result, title } of runs) if (result.reference) found.set(`${title} ${result.reference.seconds}`, { seconds: result.reference.seconds, label: `ref. ${short(result.reference.seconds)} s` });
  return found.size <= 3 ? [...found.values()] : [];
}

function lineColors(view) {
  const plain = view.runs.length <= MOST_NAMED; // then every line has its label
  return Object.fromEntries(Object.entries(view.scales).map(([channel, scale]) => [channel, { field: "series", ...scale, legend: plain ? null : { symbolSize: 120, labelExpr: "split(datum.label, '\\n')" } }]));
}

// Lines over iterations with their points, where a browser can draw so many.
function linesOf(rows, x, y, view, tips) {
  const { color, shape, strokeDash } = lineColors(view);
  const marked = rows.length <= MOST_MARKS;
  const opacity = opacityOf(view.runs);
  const line = { mark: { type: "line", strokeWidth: 1.6, clip: true }, params: marked ? [ZOOM] : [ZOOM, HOVER], encoding: { x, y, detail: { field: "run" }, color, strokeDash, opacity, ...(!marked && { tooltip: tips.slice(0, 2) }) } };
  const points = { params: [HOVER], mark: { type: "point", filled: true, size: 26, clip: true }, encoding: { x, y, color, shape, opacity, tooltip: tips } };
  return marked ? [line, points] : [line];
}

const tipsOf = (...more) => tooltip(["run", "run", null, "nominal"], ["series", "series", null, "nominal"], ["iteration", "iteration", "d"], ...more);
const ITERATION = { field: "iteration", type: "quantitative", title: "iteration", axis: { tickMinStep: 1 }, scale: { nice: false } };

function stepSpec(rows, view) {
  const { references } = view;
  const domain = rangeOf(view);
  const values = rows.map((row) => ({ ...row, drawn: Math.min(row.time, domain[1]), beyond: row.time > domain[1] }));
  const y = { field: "drawn", type: "quantitative", title: view.title, scale: { zero: false, nice: false, domain } };
  const tips = tipsOf(["seconds", "step time (s)", ".4f"]);
  const ends = endsOf(values, "drawn", view);
  const height = heightFor([...ends, ...references], 300);
  const measured = windowOf(view.runs);
  const layer = [];
  if (measured) layer.push({
    data: { values: [{ first: measured.first - 0.5, last: measured.last + 0.5 }] },
    mark: { type: "rect", color: "var(--band)" }, encoding: { x: { field: "first", type: "quantitative" }, x2: { field: "last" } },
  }, {
    data: { values: [{ middle: (measured.first + measured.last) / 2 }] },
    mark: { type: "text", align: "center", baseline: "bottom", y: -3, clip: false, color: "var(--quiet)", text: "measured" }, encoding: { x: { field: "middle", type: "quantitative" } },
  });
  layer.push(...linesOf(values, ITERATION, y, view, tips));
  if (values.some((row) => row.beyond)) layer.push({ transform: [{ filter: "datum.beyond" }], mark: { type: "point", shape: "triangle-up", filled: true, size: 45, yOffset: 4 }, encoding: { x: ITERATION, y, color: lineColors(view).color, tooltip: tips } });
  if (references.length) layer.push({ data: { values: references }, mark: { type: "rule", strokeDash: [5, 4], clip: true }, encoding: { y: { field: "seconds", type: "quantitative" } } });
  const named = references.map(({ seconds, label }) => ({ label, level: seconds, iteration: Infinity, series: null }));
  return { height, padding: { right: 5, left: 5, top: 18, bottom: 5 }, data: { values }, layer: [...layer, ...endLabels([...ends, ...named], domain, height, lineColors(view))] };
}

function showLoss(rows, view) {
  const domain = extent(rows.map((row) => row.loss));
  const y = { field: "loss", type: "quantitative", title: "loss (nats per token)", scale: { zero: false, nice: false, domain } };
  const ends = endsOf(rows, "loss", view);
  const height = heightFor(ends, 260);
  const layer = [...linesOf(rows, ITERATION, y, view, tipsOf(["loss", "loss (nats per token)", ".5f"])), ...endLabels(ends, domain, height, lineColors(view))];
  const spec = { height, data: { values: rows }, layer };
  return draw(at("loss"), rows.length && spec, rows.length ? "Loss over iterations, a line for each run" : "No loss is on record for these runs.");
}
