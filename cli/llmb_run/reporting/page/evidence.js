"use strict";
// What each figure was made of: a part for each configuration with its reference, and in it each run with its files.

function showEvidence() {
  const members = new Map();
  for (const run of report.runs) members.set(groupOf(run), [...(members.get(groupOf(run)) || []), run]);
  const order = [...members.keys()].sort((one, other) => (one < 0) - (other < 0) || one - other);
  at("evidence").append(...order.map((number) => configurationPart(number, members.get(number))));
}

function configurationPart(number, runs) {
  const group = report.groups[number];
  if (!group) return element("div", {}, element("h3", {}, "Other logs"), runs.map(runPart));
  const { reference } = group;
  return element("div", { id: placeOf(number), class: "part", tabindex: -1 }, element("h3", {}, `${group.title}, ${group.software}`),
    pairs([
      ["verdict", [mark(group.word, group.verdict_text || group.word)]],
      ["reference", reference && [`${short(reference.seconds)} s: ${reference.source}; ${reference.software}`, reference.notes.length ? lines(reference.notes) : ""]],
      ["remarks", group.remarks && group.remarks.length && [lines(group.remarks)]],
    ]), runs.map(runPart));
}

const pairs = (found) => element("dl", { class: "pairs" }, found.filter(([, value]) => value && value.length).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));

// Its figures are put in when they are looked at: a page may have hundreds of runs.
function runPart(run) {
  const { result, name } = run;
  const part = element("details", { id: runPlaces.get(name), class: "part" },
    element("summary", {}, mark(verdictOf(result)), " ", element("span", { class: "code" }, name), ` ${moment(result.created)} `, isSlow(run) ? element("span", { class: "fail" }, `${SLOW} slow node`) : ""));
  part.addEventListener("toggle", () => part.children.length > 1 || part.append(runFacts(run)));
  return part;
}

function runFacts(run) {
  const { result } = run;
  const { window, reference } = result;
  const notes = result.findings.filter((finding) => finding.severity !== "problem").map((finding) => finding.text);
  const parts = (...words) => words.filter(Boolean).join(", ");
  return pairs([
    ["verdict", result.outcome === "measured" ? result.verdict_text : `${result.outcome}: ${parts(result.message, result.cause_text)}`],
    ["step time", known(result.step_seconds_mean) && `${fixed(result.step_seconds_mean, 4)} s \u00b1 ${fixed(result.step_seconds_std, 4)} s, mean and standard deviation of iterations ${window.first} to ${window.last}, of ${run.steps.total} in the log`],
    ["steady step time", known(result.steady_step_seconds) && `${fixed(result.steady_step_seconds, 4)} s, standard error ${fixed(result.steady_step_error_seconds, 4)} s`],
    ["against its reference", reference && known(result.difference) && `${signed(result.difference)} % of ${short(reference.seconds)} s (${reference.source}), between ${signed(result.difference_low)} and ${signed(result.difference_high)} %; up to ${signed(result.tolerance)} % passes`],
    ["speed", parts(known(result.tokens_per_second) && `${whole(result.tokens_per_second)} tokens/s`, known(result.tflops_per_gpu) && `${fixed(result.tflops_per_gpu, 1)} TFLOP/s per GPU`, known(result.mfu_percent) && `MFU ${fixed(result.mfu_percent, 1)} %`)],
    ["remarks", remarksOf(run).length && lines(remarksOf(run))],
    ["besides", result.extras.lines.length && lines(result.extras.lines)],
    ["notes on nodes", notes.length && lines(notes)],
    ["nodes", run.hosts.flatMap((host) => [linkTo(nodePlaces, host), slowNodes.has(host) ? element("span", { class: "fail" }, ` ${SLOW}`) : "", " "])],
    ["job", result.job_id && `${result.job_id} (${result.state})`],
    ["folder", result.folder && path(result.folder)],
    ["in it, the log", result.log && path(result.log.replace(`${result.folder}/`, ""))],
    ["the record", result.run_id && path("run.json")],
    ["accounts of its nodes", run.hosts.length && path("nodes/")],
  ].map(([name, value]) => [name, value && !Array.isArray(value) ? [value] : value]));
}

const path = (words) => element("span", { class: "code" }, words);
