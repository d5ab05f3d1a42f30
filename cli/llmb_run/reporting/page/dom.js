"use strict";
// Every value of the report reaches the document through element(): as text, never as markup.

const report = JSON.parse(document.getElementById("data").textContent);
// Nodes are named once, and by number in each run.
for (const run of report.runs) run.hosts = run.hosts.map((number) => report.nodes[number]);
const at = (id) => document.getElementById(id);

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

const known = (value) => value !== null && value !== undefined;
const fixed = (value, digits) => (known(value) ? value.toFixed(digits) : "");
const percent = (share, digits = 1) => (known(share) ? (100 * share).toFixed(digits) : "");
const signed = (share, digits = 1) => (known(share) ? (Number((100 * share).toFixed(digits)) < 0 ? "\u2212" : "+") + Math.abs(100 * share).toFixed(digits) : "");
const many = (count, one, more = one + "s") => `${count} ${count === 1 ? one : more}`;
const moment = (seconds) => (known(seconds) ? new Date(1000 * seconds).toISOString().slice(0, 16).replace("T", " ") : "");
const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en-US") : "");
const short = (value) => (known(value) ? String(Number(value.toPrecision(5))) : "");
const quiet = (...words) => element("div", { class: "quiet" }, ...words);

// A verdict is told by its sign and its word; color only helps. The worst comes first.
const OPEN = { sign: "?", kind: "open" };
const NOTHING = { sign: "\u2013", kind: "open" };
const LIVE = { sign: "\u2026", kind: "open" };
const VERDICTS = {
  "not training": { sign: "!", kind: "fail" },
  fail: { sign: "\u2717", kind: "fail" },
  failed: { sign: "!", kind: "fail" },
  open: OPEN,
  running: LIVE,
  waiting: LIVE,
  incomplete: NOTHING,
  "stopped early": NOTHING,
  "too short": NOTHING,
  "nothing left": NOTHING,
  "not compared": NOTHING,
  "not judged": NOTHING,
  "no reference": NOTHING,
  baseline: NOTHING,
  pass: { sign: "\u2713", kind: "pass" },
};
const lookOf = (verdict) => VERDICTS[verdict] || { sign: "!", kind: "fail" };
const rankOf = (verdict) => (verdict in VERDICTS ? Object.keys(VERDICTS).indexOf(verdict) : 1.5);

// The words of llmb-run results.
function verdictOf({ outcome, verdict }) {
  if (outcome !== "measured") return outcome;
  return verdict === "not judged" || !verdict ? "not compared" : verdict;
}

function mark(verdict, words = verdict) {
  const { sign, kind } = lookOf(verdict);
  return element("span", { class: `mark ${kind}` }, `${sign} ${words}`);
}

// Where on the page the evidence is. Names are anything; ids are not.
const SLOW = "\u25b2";
const places = (prefix, names) => new Map(names.map((name, number) => [name, `${prefix}-${/^[\w.-]+$/.test(name) ? name : number}`]));
const runPlaces = places("run", report.runs.map((run) => run.name));
const nodePlaces = places("node", report.hosts.map((line) => line.host));
const slowNodes = new Set(report.hosts.filter((line) => known(line.slower)).map((line) => line.host));
const isSlow = (run) => run.hosts.some((host) => slowNodes.has(host));
const slowRuns = new Set(report.runs.filter(isSlow).map((run) => run.name));

function groupOf(run) {
  const found = report.groups.findIndex((group) => group.run_ids.includes(run.name));
  return found >= 0 ? found : report.groups.findIndex((group) => group.title === run.title && group.software === run.software);
}

// A figure that leads to what it was made of. The line has a link that the keyboard reaches, so these are not more stops.
function figure(place, words) {
  return known(place) && words !== "" ? element("a", { class: "figure", href: `#${place}`, tabindex: -1 }, words) : words;
}

const placeOf = (group) => (group >= 0 ? `group-${group}` : null);
const linkOr = (place, words) => (known(place) ? element("a", { href: `#${place}` }, words) : words);
const linkTo = (places, name, words = name) => linkOr(places.get(name), words);

// The first of ``count`` runs.
function named(runs, count) {
  return element("span", { class: "code" }, runs.flatMap((run) => [linkTo(runPlaces, run), " "]), count > runs.length ? `and ${count - runs.length} more` : "");
}

const lines = (found) => element("ul", {}, found.map((line) => element("li", {}, line)));
const folded = (title, found, open = false, id = null) => element("details", { open, id }, element("summary", {}, title), lines(found));
