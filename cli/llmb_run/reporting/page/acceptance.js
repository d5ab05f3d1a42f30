"use strict";
// The verdicts of an acceptance campaign, on the page of its evidence: before everything else, because they decide.

function concluded({ accepted, outcome = accepted ? "accepted" : known(accepted) ? "not accepted" : "not judged", headline = outcome.toUpperCase() }) {
  const kind = { accepted: "pass", "not accepted": "fail", open: "open" }[outcome] || "not judged";
  return { kind, headline };
}

function showAcceptance(campaign) {
  const { kind, headline } = concluded(campaign);
  const table = element("table", { id: "workloads" });
  const reruns = campaign.reruns.map((rerun) => [`${rerun.workload}, run ${rerun.run} (`, linkTo(runPlaces, rerun.run_id, rerun.run_id || "not started"), `)${rerun.bad_nodes.length ? `, bad: ${rerun.bad_nodes.join(", ")}` : ""}: ${rerun.reason}`]);
  const lists = [["Reruns", reruns], ["Remarks", campaign.remarks], ["What the workloads were compared with", campaign.references]];
  at("verdicts").before(element("section", { id: "acceptance" },
    element("h2", {}, `Acceptance: ${campaign.suite}`),
    element("p", {}, mark(kind, headline), ` ${campaign.why}`),
    element("div", { class: "scroll" }, table),
    lists.map(([title, found], number) => (found.length ? folded(title, found, number === 0, number === 2 && "held-against") : element("p", { class: "quiet" }, `${title}: none`)))));
  const place = (item) => placeOf(report.groups.findIndex((group) => item.title.startsWith(group.title)));
  sortedTable(table, [
    column("workload", "head", (item) => item.title, (item) => linkOr(place(item), item.title)),
    column("verdict", "medium", (item) => rankOf(item.verdict), (item) => mark(item.verdict || "not judged", item.text)),
    ...figures(campaign.columns, (item) => item, (item) => place(item), { reference_seconds: (item) => figure("held-against", short(item.reference_seconds)) }),
    column("interval\n%", "number", (item) => item.performance_low, (item) => (known(item.performance_high) ? `${percent(item.performance_low)} to ${percent(item.performance_high)}` : "")),
  ], campaign.workloads);
  at("verdicts").querySelector("h2").after(element("p", { class: "quiet" },
    "As llmb-run results gives them: against the site's baseline or published results, for each configuration by itself. The acceptance above decides."));
}
