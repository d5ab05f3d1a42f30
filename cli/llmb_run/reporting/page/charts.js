"use strict";
// What all charts have in common. Specifications are Vega-Lite's; colors are the page's variables, so that a chart
// follows the theme and the printer without being drawn again.

const SERIES = [1, 2, 3, 4, 5, 6, 7].map((number) => `var(--s${number})`);
const SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"];
const DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 6], [1, 4]];
const LABEL = 13; // pixels between the labels of two lines

const CONFIG = {
  background: null,
  aria: false, // the chart's own description says what it is; thousands of marks by themselves say nothing
  font: "system-ui, DejaVu Sans, sans-serif",
  view: { stroke: null },
  axis: {
    labelColor: "var(--quiet)", titleColor: "var(--quiet)", gridColor: "var(--grid)", domainColor: "var(--line)",
    tickColor: "var(--line)", titleFontWeight: "normal", labelFontSize: 11, titleFontSize: 12, titlePadding: 8,
  },
  legend: { labelColor: "var(--ink)", titleColor: "var(--quiet)", titleFontWeight: "normal", labelFontSize: 11, orient: "top", symbolStrokeWidth: 2 },
  text: { color: "var(--ink)", fontSize: 11 },
  rule: { color: "var(--quiet)" },
};

// The newest wish for each place; while one is being drawn, those between it and the newest are dropped.
const wishes = new Map();
const drawing = new Map();

function draw(place, spec, words) {
  wishes.set(place, { spec, words });
  if (!drawing.has(place)) drawing.set(place, drawNewest(place).finally(() => drawing.delete(place)));
  return drawing.get(place);
}

async function drawNewest(place) {
  while (wishes.has(place)) {
    const { spec, words } = wishes.get(place);
    wishes.delete(place);
    if (place.view) place.view.finalize();
    place.view = null;
    place.replaceChildren();
    for (const name of ["role", "aria-label"]) place.removeAttribute(name);
    if (spec && window.vegaEmbed) place.view = await embed(place, spec, words);
    else place.append(element("p", { class: "quiet" }, words));
  }
}

async function embed(place, spec, words) {
  const width = place.clientWidth;
  const config = { ...CONFIG, legend: { ...CONFIG.legend, columns: Math.max(1, Math.floor((width - 150) / 360)), labelLimit: Math.min(300, width - 110) } };
  const whole = { $schema: "https://vega.github.io/schema/vega-lite/v6.json", width, autosize: { type: "fit-x", contains: "padding" }, padding: { left: 5, right: 16, top: 5, bottom: 5 }, ...spec };
  // Expressions are interpreted: the page's policy forbids making code of text.
  const result = await vegaEmbed(place, whole, { actions: false, renderer: "svg", ast: true, tooltip: { disableDefaultStyle: true }, config });
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", words);
  result.view.addEventListener("click", (_, item) => {
    const run = item && item.datum && runPlaces.get(item.datum.run);
    if (run) location.hash = run;
  });
  return result;
}

// Names as colors, shapes and dashes: each of the first 49 has a pair of color and shape, and of color and dash, of its own.
function legendScales(names, title) {
  const pick = (values, turn) => names.map((_, number) => values[(number + turn * Math.floor(number / values.length)) % values.length]);
  const scale = (range) => ({ type: "nominal", scale: { domain: names, range }, title });
  return { color: scale(pick(SERIES, 0)), shape: scale(pick(SHAPES, 1)), strokeDash: scale(pick(DASHES, 1)) };
}

// Labels at the right edge, no two over each other, each with a piece of its line that leads to where the line ends.
// ends: {label, level in the axis's unit, iteration, series}; domain: the axis's.
function endLabels(ends, domain, height, { color, strokeDash }) {
  const [low, high] = domain;
  const wanted = ends.map((end) => ({ ...end, at: height * (1 - (Math.min(high, Math.max(low, end.level)) - low) / (high - low)) }));
  const values = spread(wanted.sort((one, other) => one.at - other.at), height);
  const place = (expr) => ({ value: { expr } });
  const line = { x: place("clamp(scale('x', datum.iteration), 0, width) + 3"), x2: place("width + 30"), y: place("datum.at"), y2: place("datum.px") };
  return [
    { data: { values }, mark: { type: "rule", strokeWidth: 1.2, clip: false }, encoding: { ...line, color, strokeDash, opacity: { condition: { test: "datum.early", value: 0.3 }, value: 1 } } },
    { data: { values }, mark: { type: "text", align: "left", baseline: "middle", limit: 90, clip: false, x: { expr: "width + 34" }, y: { expr: "datum.px" } }, encoding: { text: { field: "label", type: "nominal" } } },
  ];
}

// Each as near to its place as the others allow: neighbors that are too close share the middle of their places.
function spread(sorted, height) {
  const blocks = [];
  for (const item of sorted) {
    let block = { items: [item], sum: item.at };
    const start = (some) => Math.min(Math.max(0, some.sum / some.items.length - (LABEL * (some.items.length - 1)) / 2), height - LABEL * (some.items.length - 1));
    block.start = start(block);
    while (blocks.length && blocks.at(-1).start + LABEL * blocks.at(-1).items.length > block.start) {
      const above = blocks.pop();
      block = { items: [...above.items, ...block.items], sum: above.sum + block.sum };
      block.start = start(block);
    }
    blocks.push(block);
  }
  return blocks.flatMap((block) => block.items.map((item, number) => ({ ...item, px: block.start + LABEL * number })));
}

function tooltip(...fields) {
  return fields.map(([field, title, format, type = "quantitative"]) => ({ field, title, type, ...(format && { format }) }));
}
