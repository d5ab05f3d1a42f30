"use strict";
// The verdicts of an acceptance campaign, on the page of its evidence: before everything else, because they decide.

function showAcceptance() {
  const campaign = report.campaign;
  if (!known(campaign)) return;
  const word = campaign.accepted ? mark("pass", "ACCEPTED") : mark("fail", "NOT ACCEPTED");
  const table = element("table", { id: "workloads" });
  const lists = [
    [`Reruns: ${campaign.reruns.length || "none"}`, campaign.reruns.map((rerun) => `${rerun.workload}, run ${rerun.run} (${rerun.run_id || "not started"}): ${rerun.reason}`)],
    ["Remarks", campaign.remarks],
    ["What the workloads were held against", campaign.references],
  ].filter(([title, lines], number) => lines.length || number === 0);
  at("verdicts").before(element("section", { id: "acceptance" },
    element("h2", {}, `Acceptance: ${campaign.suite}`),
    element("p", {}, word, ` ${campaign.why}`),
    element("div", { class: "scroll" }, table),
    lists.map(([title, lines], number) => (lines.length ? element("details", { open: number === 0 }, element("summary", {}, title), element("ul", {}, lines.map((line) => element("li", {}, line)))) : element("p", { class: "quiet" }, title)))));
  sortedTable(table, [
    column("verdict", "short", (item) => Object.keys(VERDICTS).indexOf(item.verdict), (item) => mark(known(item.verdict) ? item.verdict : "not judged", item.text)),
    column("workload", "short", (item) => item.title),
    column("GPUs", "number", (item) => item.gpus),
    column("runs", "number", (item) => item.runs),
    column("reruns", "number", (item) => item.reruns),
    column("step time\ns", "number", (item) => item.step_seconds, (item) => fixed(item.step_seconds, 3)),
    column("reference\ns", "number", (item) => item.reference_seconds, (item) => (known(item.reference_seconds) ? String(Number(item.reference_seconds.toPrecision(5))) : "")),
    column("performance\n%", "number", (item) => item.performance, (item) => percent(item.performance)),
    column("interval\n%", "short", (item) => item.performance_low, (item) => (known(item.performance_high) ? `${percent(item.performance_low)} to ${percent(item.performance_high)}` : "")),
    column("required\n%", "number", (item) => item.required, (item) => (known(item.required) ? `> ${percent(item.required)}` : "")),
  ], campaign.workloads);
  at("verdicts").querySelector("h2").after(element("p", { class: "quiet" },
    "As llmb-run results gives them: against the site's baseline or published results, for each configuration by itself. The acceptance above decides."));
}
