"use strict";
// One choice of runs for charts and table.

const filters = {
  form: at("filters"),
  listeners: [],

  setUp() {
    const options = (name, title, values) => this.form.elements[name].append(
      element("option", { value: "" }, title), ...values.map((value) => element("option", { value }, value)));
    const every = (value) => [...new Set(report.runs.map(value).filter(Boolean))];
    options("title", "all", every((run) => run.title));
    options("software", "all", every((run) => run.software));
    const met = new Set(every((run) => verdictOf(run.result)));
    options("verdict", "all", Object.keys(VERDICTS).filter((verdict) => met.has(verdict)));
    let typing;
    this.form.addEventListener("input", (event) => {
      clearTimeout(typing);
      typing = setTimeout(() => this.changed(), event.target.name === "text" ? 200 : 0);
    });
    this.form.addEventListener("reset", () => setTimeout(() => this.changed()));
    this.form.addEventListener("submit", (event) => event.preventDefault());
  },

  choose(values) {
    for (const name of ["title", "software", "verdict", "text"]) this.form.elements[name].value = values[name] ?? "";
    this.changed();
  },

  get single() { return Boolean(this.form.elements.verdict.value || this.form.elements.text.value.trim()); },

  get title() { return this.form.elements.title.value; },

  runs() {
    const { title, software, verdict, text } = this.form.elements;
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    return report.runs.filter((run) =>
      (!title.value || run.title === title.value) && (!software.value || run.software === software.value) &&
      (!verdict.value || verdictOf(run.result) === verdict.value) && words.every((word) => searched(run).includes(word)));
  },

  changed() {
    const chosen = this.runs();
    const all = report.runs.length === report.counts.runs ? "" : " shown here";
    at("count").textContent = `${chosen.length} of ${many(report.runs.length, "run")}${all}`;
    for (const listener of this.listeners) listener(chosen);
  },
};

const texts = new Map();
function searched(run) {
  if (!texts.has(run)) {
    const { run_id, name, job_id, message, cause_text, verdict_text, remarks, notices, findings } = run.result;
    const parts = [run_id, name, job_id, message, cause_text, verdict_text, run.title, run.software, ...run.hosts, ...remarks, ...notices];
    texts.set(run, [...parts, ...findings.map((finding) => finding.text)].filter(known).join("\n").toLowerCase());
  }
  return texts.get(run);
}
