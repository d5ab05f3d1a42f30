"use strict";
// Measurements of the fabric: the verdict, what was found, and every group of nodes by its bus bandwidth.

const LEVELS = { ok: "pass", fail: "fail", warn: "open", "not judged": "open" };
const LEVEL_SIGNS = { ok: "\u2713", fail: "\u2717", warn: SLOW, "not judged": "\u2013" };
const KINDS = { slow: [SERIES[1], "triangle-down"], usual: [SERIES[0], "circle"], "not judged": [SERIES[6], "circle"] };

function showFabrics() {
  if (!report.fabrics.length) return null;
  if (!at("fabric")) {
    const section = element("section", { id: "fabric" }, element("h2", {}, "Fabric"));
    at("verdicts").before(section);
    report.fabrics.forEach((part, number) => showFabric(section, part, number));
  }
  return Promise.all(report.fabrics.map((part, number) => drawGroups(at(`fabric-groups-${number}`), part)));
}

function showFabric(section, part, number) {
  const measured = element("table"), listed = element("table");
  section.append(
    element("p", {}, element("span", { class: `mark ${LEVELS[part.level]}` }, `${LEVEL_SIGNS[part.level]} ${part.level}`), ` ${part.answer}`),
    ...(part.findings.length ? [lines(part.findings)] : []),
    element("p", { class: "quiet" }, part.coarseness));
  if (part.groups.length) {
    section.append(element("figure", { class: "wide" },
      element("figcaption", {}, "Groups of nodes by bus bandwidth, the slowest first"),
      element("p", { class: "quiet" }, "Below the dashed line a group is slow; a cross gave no figure."),
      element("div", { class: "chart", id: `fabric-groups-${number}` })));
  }
  section.append(element("div", { class: "scroll" }, measured));
  sortedTable(measured, part.heads.map((head, place) => column(head, place ? "number" : "head", (row) => row[place])), part.rows);
  if (!part.groups.length) return;
  section.append(element("details", {}, element("summary", {}, "The slowest groups"), part.left_out ? element("p", { class: "quiet" }, part.left_out) : "", element("div", { class: "scroll" }, listed)));
  sortedTable(listed, [
    column("nodes", "head", (group) => group.nodes),
    column("speed", "short", (group) => group.kind, (group) => (group.kind === "slow" ? element("span", { class: "mark fail" }, `${SLOW} slow`) : group.kind)),
    column("bus bandwidth\nGB/s", "number", (group) => group.busbw_gbps, (group) => fixed(group.busbw_gbps, 1)),
    column("against the median\n%", "number", (group) => group.share, (group) => signed(group.share)),
    column("why", "long", (group) => group.why),
  ], part.groups.slice(0, part.listed), { decorate: (line, group) => line.classList.toggle("slow", ["slow", "no figure"].includes(group.kind)) });
}

function drawGroups(place, { groups, count, limit }) {
  if (!place) return null;
  const values = groups.map((group, number) => ({ ...group, number: number + 1, share: known(group.share) ? 100 * group.share : null }));
  const timed = values.filter((value) => known(value.busbw_gbps)), untimed = values.filter((value) => !known(value.busbw_gbps));
  const x = { field: "number", type: "quantitative", title: count > groups.length ? `group (${groups.length} of ${count}, the slowest)` : "group", axis: { tickMinStep: 1 }, scale: { nice: false, zero: false, padding: 10 } };
  const y = { field: "busbw_gbps", type: "quantitative", title: "bus bandwidth (GB/s)", scale: { zero: false } };
  const tooltips = tooltip(["nodes", "nodes", null, "nominal"], ["busbw_gbps", "GB/s", ".1f"], ["share", "against the median (%)", "+.1f"], ["kind", "speed", null, "nominal"], ["why", "why", null, "nominal"]);
  const there = Object.keys(KINDS).filter((kind) => timed.some((value) => value.kind === kind));
  const byKind = (part) => ({ field: "kind", type: "nominal", title: null, scale: { domain: there, range: there.map((kind) => KINDS[kind][part]) } });
  const layer = [
    { data: { values: timed }, mark: { type: "point", filled: true, size: 55 }, encoding: { x, y, color: byKind(0), shape: byKind(1), tooltip: tooltips } },
    ...(known(limit) ? [{ data: { values: [{ limit }] }, mark: { type: "rule", strokeDash: [5, 4], color: "var(--fail)" }, encoding: { y: { ...y, field: "limit" } } }] : []),
    ...(untimed.length ? [{ data: { values: untimed }, mark: { type: "point", shape: "cross", size: 60, color: "var(--fail)" }, encoding: { x, y: { value: { expr: "height - 6" } }, tooltip: tooltips } }] : []),
  ];
  const words = `${timed.length} groups of nodes by bus bandwidth, ${timed.filter(({ kind }) => kind === "slow").length} slow; the dashed line is the limit, crosses gave no figure`;
  return draw(place, timed.length && { height: 220, layer }, words);
}
