"use strict";
// What all charts have in common. Specifications are Vega-Lite's; colors are the page's variables, so that a chart
// follows the theme and the printer without being drawn again.

const SERIES = [1, 2, 3, 4, 5, 6, 7].map((number) => `var(--s${number})`);
const SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"];
const DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 6], [1, 4]];

const CONFIG = {
  background: null,
  font: "system-ui, DejaVu Sans, sans-serif",
  view: { stroke: null },
  axis: {
    labelColor: "var(--quiet)", titleColor: "var(--quiet)", gridColor: "var(--grid)", domainColor: "var(--line)",
    tickColor: "var(--line)", titleFontWeight: "normal", labelFontSize: 11, titleFontSize: 12, titlePadding: 8,
  },
  legend: { labelColor: "var(--ink)", titleColor: "var(--quiet)", titleFontWeight: "normal", labelFontSize: 11, orient: "top", labelLimit: 300, columns: 3, symbolStrokeWidth: 2 },
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
    if (spec) place.view = await embed(place, spec, words);
    else place.append(element("p", { class: "quiet" }, words));
  }
}

function embed(place, spec, words) {
  const whole = { $schema: "https://vega.github.io/schema/vega-lite/v6.json", width: "container", autosize: { type: "fit-x", contains: "padding" }, description: words, ...spec };
  // Expressions are interpreted: the page's policy forbids making code of text.
  return vegaEmbed(place, whole, { actions: false, renderer: "svg", ast: true, tooltip: { disableDefaultStyle: true }, config: CONFIG });
}

// Names as colors, shapes and dashes: up to seven, those beyond share the last.
function legendScales(names, title) {
  const domain = names;
  const cycle = (values) => names.map((_, number) => values[Math.min(number, values.length - 1)]);
  return {
    color: { type: "nominal", scale: { domain, range: cycle(SERIES) }, title },
    shape: { type: "nominal", scale: { domain, range: cycle(SHAPES) }, title },
    strokeDash: { type: "nominal", scale: { domain, range: cycle(DASHES) }, title },
  };
}

function tooltip(...fields) {
  return fields.map(([field, title, format, type = "quantitative"]) => ({ field, title, type, ...(format && { format }) }));
}
