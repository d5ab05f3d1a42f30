"use strict";
// The table of runs, and the smaller ones: nodes and differences.

function runTable() {
  const steady = ({ name, result: { steady_step_seconds: seconds, steady_step_error_seconds: error } }) => figure(runPlaces.get(name), known(seconds) ? `${fixed(seconds, 3)} \u00b1 ${fixed(error, 3)}` : "");
  const memory = ({ name, result: { memory_gib: peak, predicted_memory_gib: predicted } }) => [figure(runPlaces.get(name), fixed(peak, 1)), known(predicted) ? quiet(`${fixed(predicted, 1)} predicted`) : ""];
  const columns = [
    column("verdict", "short", (run) => rankOf(verdictOf(run.result)), (run) => [mark(verdictOf(run.result)), indicated(run.result)]),
    column("run, job", "head", (run) => run.name, (run) => [element("span", { class: "code", title: run.result.name }, linkTo(runPlaces, run.name)), quiet(run.result.job_id), slowNodesOf(run)]),
    column("date", "date", (run) => run.result.created, (run) => moment(run.result.created)),
    column("configuration, software", "medium", (run) => `${run.title} ${run.software}`, (run) => [run.title || "other log", quiet(run.software)]),
    ...figures(report.columns.runs, (run) => run.result, (run) => runPlaces.get(run.name), { steady_step_seconds: steady, memory_gib: memory, tflops_per_gpu: tflops }),
    column("remarks", "number", (run) => remarksOf(run).length, (run) => figure(runPlaces.get(run.name), String(remarksOf(run).length || ""))),
  ];
  return sortedTable(at("run-table"), columns, report.runs);
}

// Of a tiny model it would be 0.00.
const tflops = (run) => figure(runPlaces.get(run.name), fixed(run.result.tflops_per_gpu, 2).replace(/^0\.00$/, ""));

const slowNodesOf = (run) => run.hosts.filter((host) => slowNodes.has(host)).map((host) => element("div", { class: "fail" }, `${SLOW} `, linkTo(nodePlaces, host, host.split(".")[0])));

const problemsOf = ({ result }) => result.findings.filter((finding) => finding.severity === "problem").map((finding) => finding.text);

function remarksOf(run) {
  const { status, outcome, message, cause_text, remarks, notices } = run.result;
  return [status === "Success" ? null : `${outcome === "measured" ? status : outcome}: ${[message, cause_text].filter(Boolean).join("; ")}`, ...problemsOf(run), ...remarks, ...notices].filter(Boolean);
}

function showNodes() {
  if (report.hosts.length) sortedTable(at("node-table"), [
    column("node", "head", (line) => line.host, (line) => [line.host, known(line.slower) ? element("div", { class: "mark fail" }, `${SLOW} slow`) : ""]),
    column("GPUs", "medium", (line) => line.gpus),
    column("slower than without it\n%", "number", (line) => line.slower, (line) => [signed(line.slower), line.together.length ? quiet(`or ${line.together.join(" or ")}: always together`) : ""]),
    column("relative step time\n%", "number", (line) => line.ratio, (line) => percent(line.ratio)),
    column("runs", "number", (line) => line.count),
    column("runs with problems", "medium", (line) => line.problems, (line) => (line.problems ? folded(String(line.problems), line.findings) : "0")),
    column("which", "long", (line) => line.count, (line) => named(line.runs, line.count)),
  ], report.hosts, { decorate: (row, line) => { row.id = nodePlaces.get(line.host); row.classList.toggle("slow", known(line.slower)); } });
}

function showDifferences() {
  for (const { title, facts } of report.differing) {
    const table = element("table");
    at("difference-lists").append(element("details", { open: report.differing.length < 4 }, element("summary", {}, `${title}: ${many(facts.length, "difference")}`), element("div", { class: "scroll" }, table)));
    const rows = facts.flatMap((fact) => fact.values.map((value, number) => ({ fact, value, number })));
    sortedTable(table, [
      column("what", "head", ({ fact }) => fact.name),
      column("value", "long", ({ value }) => value.value, ({ value }) => element("span", { class: "code" }, value.value)),
      column("runs", "number", ({ value }) => value.count),
      column("which", "long", ({ value }) => value.count, ({ value, fact, number }) => [named(value.runs, value.count), number === fact.values.length - 1 && fact.others ? ` (and ${many(fact.others, "other value")})` : ""]),
    ], rows);
  }
}
