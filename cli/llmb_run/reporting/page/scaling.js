"use strict";
// Efficiency over the number of GPUs, beside the ideal line and what was published.

function showScaling() {
  at("scaling-lines").replaceChildren();
  return Promise.all(report.scaling.map((line, number) => {
    const share = element("div", { class: "chart" });
    const table = element("table");
    at("scaling-lines").append(element("h3", {}, `${line.title}, ${line.software}: ${line.kind} scaling`),
      element("figure", {}, element("figcaption", {}, "Efficiency"), share),
      element("div", { class: "scroll" }, table));
    scalingTable(table, line, report.scales[number]);
    return drawScaling(line, share);
  }));
}

function drawScaling(line, share) {
  const base = line.points[0];
  const measured = line.points.map((point) => ({ what: "measured", gpus: point.gpus, rate: point.tokens_per_second, efficiency: 100 * point.efficiency }));
  const published = line.published.map((point) => ({ what: "published", gpus: point.gpus, rate: point.tokens_per_second, efficiency: known(point.efficiency) ? 100 * point.efficiency : null, source: point.source }));
  const scales = [...new Set([...measured, ...published].map((point) => point.gpus))].sort((one, other) => one - other);
  const ideal = scales.map((gpus) => ({ what: "ideal", gpus, rate: (base.tokens_per_second / base.gpus) * gpus, efficiency: 100 }));
  const domain = ["measured", "published", "ideal"].filter((what) => what !== "published" || published.length);
  const pick = (values) => ({ domain, range: domain.map((what) => values[what]) });
  const values = [...measured, ...published, ...ideal];
  const x = { field: "gpus", type: "quantitative", title: "GPUs", scale: { type: "log", base: 2 }, axis: { values: scales, format: "d", labelOverlap: true } };
  const tips = tooltip(["what", "what", null, "nominal"], ["gpus", "GPUs", "d"], ["efficiency", "efficiency (%)", ".1f"], ["rate", "tokens/s", ",.0f"], ["source", "source", null, "nominal"]);
  const spec = {
    height: 240, data: { values },
    transform: [{ filter: "isValid(datum.efficiency)" }],
    encoding: {
      x, y: { field: "efficiency", type: "quantitative", title: "efficiency (%)", scale: { zero: false }, axis: { format: "~r" } },
      color: { field: "what", type: "nominal", title: null, scale: pick({ measured: SERIES[0], published: SERIES[1], ideal: "var(--quiet)" }) },
    },
    layer: [
      { mark: { type: "line", strokeWidth: 1.6 }, encoding: { strokeDash: { field: "what", type: "nominal", title: null, scale: pick({ measured: [1, 0], published: [6, 3], ideal: [2, 3] }) } } },
      { transform: [{ filter: "datum.what != 'ideal'" }], mark: { type: "point", filled: true, size: 60 }, encoding: { shape: { field: "what", type: "nominal", title: null, scale: pick({ measured: "circle", published: "diamond", ideal: "stroke" }) }, tooltip: tips } },
    ],
  };
  return draw(share, spec, `Efficiency in percent over GPUs: ${line.title}, ${line.software}, ${line.kind} scaling`);
}

function scalingTable(table, line, rows) {
  // The configuration at one scale is the line's with its number of GPUs.
  const group = (point) => placeOf(report.groups.findIndex(({ title, software }) => software === line.software && title === line.title.replace(/ on ([^\s,]+)(?=$|,)/, ` on ${point.gpus} $1`)));
  const columns = [
    column("number of GPUs", "head", (row) => row.gpus, (row) => linkOr(group(row), `${row.gpus} GPUs`)),
    ...figures(report.columns.scaling.filter(({ key }) => key !== "gpus"), (row) => row, group),
    column("interval\n%", "number", (row) => row.efficiency_low, (row) => (known(row.efficiency_low) ? `${percent(row.efficiency_low)} to ${percent(row.efficiency_high)}` : "")),
    column("published by", "long", (row) => row.published_source),
  ];
  sortedTable(table, columns.filter(({ title }) => title !== "interval\n%" || rows.some((row) => known(row.efficiency_low))), rows);
}
