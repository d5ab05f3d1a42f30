"use strict";
// The table of runs, and the smaller ones: nodes and differences.

function runTable() {
  const figure = (title, name, digits) => column(title, "number", (run) => run.result[name], (run) => fixed(run.result[name], digits));
  const quiet = (text) => (known(text) ? element("div", { class: "quiet" }, text) : "");
  const columns = [
    column("verdict", "short", (run) => Object.keys(VERDICTS).indexOf(verdictOf(run.result)), (run) => [mark(verdictOf(run.result)), indicated(run.result)]),
    column("run, job", "short", (run) => run.name, (run) => [element("span", { class: "code", title: run.result.name }, run.name), quiet(run.result.job_id)]),
    column("date", "short", (run) => run.result.created, (run) => moment(run.result.created)),
    column("configuration, software", "short", (run) => `${run.title} ${run.software}`, (run) => [run.title || "other log", quiet(run.software)]),
    figure("step time\ns", "step_seconds", 3),
    column("steady step\ns", "number", (run) => run.result.steady_step_seconds, (run) => (known(run.result.steady_step_seconds) ? `${fixed(run.result.steady_step_seconds, 3)} \u00b1 ${fixed(run.result.steady_step_error_seconds, 3)}` : "")),
    column("difference\n%", "number", (run) => run.result.difference, (run) => signed(run.result.difference)),
    column("tokens/s", "number", (run) => run.result.tokens_per_second, (run) => whole(run.result.tokens_per_second)),
    figure("TFLOP/s\nper GPU", "tflops_per_gpu", 1),
    figure("MFU\n%", "mfu_percent", 1),
    figure("power\nW per GPU", "watts_per_gpu_mean", 0),
    column("remarks", "medium", (run) => remarksOf(run).length, (run) => {
      const lines = remarksOf(run);
      return lines.length ? element("details", {}, element("summary", {}, many(lines.length, "remark")), element("ul", {}, lines.map((line) => element("li", {}, line)))) : "";
    }),
  ];
  return sortedTable(at("run-table"), columns, report.runs);
}

function remarksOf({ result }) {
  const problems = result.findings.filter((finding) => finding.severity === "problem").map((finding) => finding.text);
  return [result.status === "Success" ? null : `${result.status}: ${result.message || ""}`, ...problems, ...result.remarks, ...result.notices].filter(Boolean);
}

function showNodes() {
  if (!report.hosts.length) {
    at("nodes-note").textContent = "The nodes of these runs left no account of themselves.";
    return;
  }
  at("nodes-note").textContent = "Relative step time: the median over the node's runs of a run's step time against the mean of all repeats of its configuration. Above 100 %, runs with this node are slower.";
  sortedTable(at("node-table"), [
    column("node", "short", (line) => line.host),
    column("GPUs", "short", (line) => line.gpus),
    column("runs", "number", (line) => line.runs.length),
    column("relative step time\n%", "number", (line) => line.ratio, (line) => percent(line.ratio)),
    column("runs with problems", "number", (line) => line.problems),
    column("which", "long", (line) => line.runs.length, (line) => named(line.runs)),
  ], report.hosts);
}

function named(runs, most = 12) {
  return element("span", { class: "code" }, runs.slice(0, most).join(" ") + (runs.length > most ? ` and ${runs.length - most} more` : ""));
}

function showDifferences() {
  if (!report.differing.length) at("difference-lists").append(element("p", { class: "quiet" }, "No two runs of one configuration differ in anything on record."));
  for (const { title, facts } of report.differing) {
    const table = element("table");
    at("difference-lists").append(element("details", { open: report.differing.length < 4 }, element("summary", {}, `${title}: ${many(facts.length, "difference")}`), element("div", { class: "scroll" }, table)));
    const rows = facts.flatMap((fact) => fact.values.map((value, number) => ({ fact, value, number })));
    sortedTable(table, [
      column("what", "short", ({ fact, number }) => fact.name, ({ fact }) => fact.name),
      column("value", "long", ({ value }) => value.value, ({ value }) => element("span", { class: "code" }, value.value)),
      column("runs", "number", ({ value }) => value.runs.length),
      column("which", "long", ({ value }) => value.runs.length, ({ value, fact, number }) => [named(value.runs), number === fact.values.length - 1 && fact.others ? ` (and ${many(fact.others, "other value")})` : ""]),
    ], rows);
  }
}
