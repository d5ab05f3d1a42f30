"use strict";
// A line for each configuration on one software: how it stands against its reference, the worst first.

function showVerdicts(choose) {
  at("references").querySelector("ul").replaceWith(lines(report.references));
  at("references").hidden = !report.references.length;
  const groups = report.groups.map((group, number) => ({ ...group, place: placeOf(number), kind: group.word }));
  const reach = Math.max(0.1, ...groups.flatMap((group) => [group.difference_high, group.tolerance, -group.difference_low].filter(known))) * 1.05;
  const columns = [
    column("verdict", "short", (group) => rankOf(group.kind), (group) => [mark(group.kind), indicated(group)]),
    column("configuration, software", "head", (group) => `${group.title} ${group.software}`, (group) => [element("button", { type: "button", class: "plain", title: "show its runs" }, group.title), quiet(group.software)]),
    column("runs", "number", (group) => group.runs, (group) => [figure(group.place, String(group.runs)), ...others(group)]),
    ...figures(report.columns.groups, (group) => group, (group) => group.place, { interval: halfInterval }),
    column("interval", "short", (group) => group.difference_high, (group) => interval(group, reach)),
    column("in words", "long", (group) => group.more_runs, (group) => group.verdict_text),
  ];
  const rows = groups.sort((one, other) => rankOf(one.kind) - rankOf(other.kind) || (other.difference || 0) - (one.difference || 0));
  sortedTable(at("groups"), columns, rows, {
    decorate: (line, group) => {
      line.className = "choice";
      line.dataset.title = group.title;
      line.addEventListener("click", (event) => event.target.closest("a") || choose(group));
    },
  });
  return rows;
}

// An interval as wide as the value itself says nothing.
function halfInterval(group) {
  return figure(group.place, group.interval >= 1 ? "too few" : percent(group.interval));
}

// The runs of a configuration that its figures are not of.
function others({ outcomes, waiting, in_reference: within }) {
  const untimed = Object.entries(outcomes).filter(([outcome]) => outcome !== "measured");
  const counts = [...untimed.map(([outcome, count]) => [count, outcome]), [waiting, "not counted yet"], [within, "in the baseline"]];
  return counts.filter(([count]) => count).map(([count, what]) => quiet(`${count} ${what}`));
}

// A reference of other software than the runs'.
function indicated({ reference }) {
  return reference && !reference.same_software ? quiet("indication") : "";
}

function interval(group, reach) {
  if (!known(group.difference)) return "";
  const place = (share) => `left: ${(50 + (50 * Math.max(-reach, Math.min(reach, share))) / reach).toFixed(2)}%`;
  const span = (low, high) => `${place(low)}; right: ${(50 - (50 * Math.min(reach, high)) / reach).toFixed(2)}%`;
  const words = `${signed(group.difference)} %, between ${signed(group.difference_low)} and ${signed(group.difference_high)} %; up to ${signed(group.tolerance)} % passes`;
  return element("span", { class: `interval ${lookOf(group.kind).kind}`, role: "img", "aria-label": words, title: words },
    element("i", { class: "zero", style: place(0) }), element("i", { class: "limit", style: place(group.tolerance) }),
    element("i", { class: "bar", style: span(group.difference_low, group.difference_high) }),
    element("i", { class: "dot", style: place(group.difference) }));
}
