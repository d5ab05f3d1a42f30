"use strict";
// What a reader wants first: the answer and what to do; of what, when and by whom; and where the rest is.

const WORDS = { PASS: "pass", FAIL: "fail", OPEN: "open", FASTEST: "pass" };

function showHead() {
  const { word, text, figure, reference, todo, command, fastest, fastest_command, also } = report.answer;
  const said = (words, pasted) => (words ? element("p", {}, words, pasted ? element("code", { class: "pasted" }, pasted) : "") : "");
  at("title").textContent = report.title;
  at("answer").append(
    element("p", { id: "word", class: WORDS[word] }, word),
    element("p", { id: "sentence" }, text),
    figure ? element("p", { id: "figure" }, element("strong", {}, figure), reference ? element("span", { class: "quiet" }, "against ", reference) : "") : "",
    element("div", { id: "todo" }, said(todo, command), said(fastest, fastest_command)),
    also.length ? lines(also) : "");
  at("facts").append(...report.facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
    element("dt", {}, "Report"), element("dd", {}, `${many(report.counts.runs, "run")}, made ${moment(report.made)}, llmb ${report.version}. All times are UTC.`));
}

// A section of which there is nothing is not there; what is left out of one is said in it.
function showSections() {
  const found = {
    verdicts: report.groups, charts: report.runs.filter((run) => run.steps.index.length), sweeps: report.sweeps, scaling: report.scaling,
    runs: report.runs, nodes: report.hosts, differences: report.differing, evidence: report.runs,
  };
  for (const [id, items] of Object.entries(found)) at(id).hidden = !items.length;
  at("filters").hidden = !report.runs.length;
  at("loss-figure").hidden = !report.runs.some((run) => run.steps.loss.some(known));
  at("history-figure").hidden = !report.histories.length;
  const places = { groups: "verdicts", history: "history-figure" };
  for (const [section, words] of Object.entries(report.left_out)) at(places[section] || section).querySelector(".left-out").textContent = words;
}

function showContents() {
  const sections = [...document.querySelectorAll("main section:not([hidden])")];
  at("contents").append(...sections.map((section) => element("a", { href: `#${section.id}` }, section.querySelector("h2").textContent.split(":")[0])));
}

// A link leads to something that can be seen: what is folded is opened.
function follow() {
  const found = at(decodeURIComponent(location.hash.slice(1)));
  if (!found) return;
  for (let above = found; above; above = above.parentElement) if (above.localName === "details") above.open = true;
  found.scrollIntoView();
}
