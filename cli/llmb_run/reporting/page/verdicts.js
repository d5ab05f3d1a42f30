"use strict";
// What a reader wants first: how many passed, and by how much the others missed.

function showVerdicts(choose) {
  at("title").textContent = report.title;
  at("made").textContent = `${many(report.runs.length, "run")}, ${moment(report.made)} UTC, llmb ${report.version}. Times are UTC.`;
  const list = at("references").querySelector("ul");
  list.append(...report.references.map((line) => element("li", {}, line)));
  at("references").hidden = !report.references.length;

  const groups = report.groups.map((group) => ({ ...group, kind: group.verdict || (group.run_ids.length ? "not judged" : "no success") }));
  const tiles = Object.keys(VERDICTS).map((verdict) => [verdict, groups.filter((group) => group.kind === verdict)]);
  at("tiles").append(...tiles.filter(([, found]) => found.length).map(([verdict, found]) => {
    const others = found.filter(isIndication).length;
    const words = (found.length === 1 ? "configuration" : "configurations") + (others ? `, ${others} as an indication` : "");
    return element("div", { class: "tile" }, element("b", { class: VERDICTS[verdict].kind }, String(found.length)),
      element("span", {}, mark(verdict), element("br"), element("span", { class: "quiet" }, words)));
  }));
  const broken = report.runs.filter((run) => verdictOf(run.result) === "no success").length;
  if (broken) at("tiles").append(element("div", { class: "tile" }, element("b", { class: "fail" }, String(broken)),
    element("span", {}, element("span", { class: "mark fail" }, "! not successful"), element("br"), element("span", { class: "quiet" }, broken === 1 ? "run" : "runs"))));

  const rank = Object.keys(VERDICTS);
  const reach = Math.max(0.1, ...groups.flatMap((group) => [group.difference_high, group.tolerance, -group.difference_low].filter(known))) * 1.05;
  const columns = [
    column("verdict", "short", (group) => rank.indexOf(group.kind), (group) => [mark(group.kind), indicated(group)]),
    column("configuration", "short", (group) => group.title),
    column("software", "short", (group) => group.software),
    column("runs", "number", (group) => group.run_ids.length, (group) => group.run_ids.length + (group.unsuccessful ? ` of ${group.run_ids.length + group.unsuccessful}` : "")),
    column("steady step\ns", "number", (group) => group.step_seconds, (group) => [fixed(group.step_seconds, 3), known(group.interval) ? element("div", { class: "quiet" }, `± ${percent(group.interval)} %`) : ""]),
    column("spread\n%", "number", (group) => group.spread, (group) => percent(group.spread)),
    column("reference\ns", "number", (group) => group.reference && group.reference.seconds, (group) => (group.reference ? String(Number(group.reference.seconds.toPrecision(5))) : "")),
    column("difference\n%", "number", (group) => group.difference, (group) => signed(group.difference)),
    column("interval", "short", (group) => group.difference_high, (group) => interval(group, reach)),
    column("passes up to\n%", "number", (group) => group.tolerance, (group) => signed(group.tolerance)),
    column("to decide", "medium", (group) => group.more_runs, toDecide),
  ];
  const rows = groups.sort((one, other) => rank.indexOf(one.kind) - rank.indexOf(other.kind));
  sortedTable(at("groups"), columns, rows, {
    decorate: (line, group) => {
      line.className = "choice";
      line.dataset.title = group.title;
      line.addEventListener("click", () => choose(group));
    },
  });
  return rows;
}

// A reference of other software than the runs'.
function isIndication(group) {
  return Boolean(group.reference && !group.reference.same_software);
}

function indicated(judged) {
  return isIndication(judged) ? element("div", { class: "quiet" }, "indication") : "";
}

function toDecide(group) {
  if (group.kind === "pass" || group.kind === "fail") return "";
  if (group.kind !== "inconclusive") return group.verdict_text || "no successful run";
  if (!known(group.difference)) return group.verdict_text;
  if (group.reference_too_uncertain) return "a baseline of more runs";
  return known(group.more_runs) ? `about ${many(group.more_runs, "more run")}` : "too close to the limit to tell";
}

function interval(group, reach) {
  if (!known(group.difference)) return "";
  const place = (share) => `left: ${(50 + (50 * Math.max(-reach, Math.min(reach, share))) / reach).toFixed(2)}%`;
  const span = (low, high) => `${place(low)}; right: ${(50 - (50 * Math.min(reach, high)) / reach).toFixed(2)}%`;
  const words = `${signed(group.difference)} %, between ${signed(group.difference_low)} and ${signed(group.difference_high)} %; up to ${signed(group.tolerance)} % passes`;
  return element("span", { class: `interval ${VERDICTS[group.kind].kind}`, role: "img", "aria-label": words, title: words },
    element("i", { class: "zero", style: place(0) }), element("i", { class: "limit", style: place(group.tolerance) }),
    element("i", { class: "bar", style: span(group.difference_low, group.difference_high) }),
    element("i", { class: "dot", style: place(group.difference) }));
}
