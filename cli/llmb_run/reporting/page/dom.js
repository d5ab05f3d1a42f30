"use strict";
// Every value of the report reaches the document through element(): as text, never as markup.

const report = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

const known = (value) => value !== null && value !== undefined;
const fixed = (value, digits) => (known(value) ? value.toFixed(digits) : "");
const percent = (share, digits = 1) => (known(share) ? (100 * share).toFixed(digits) : "");
const signed = (share, digits = 1) => (known(share) ? (share < 0 ? "\u2212" : "+") + Math.abs(100 * share).toFixed(digits) : "");
const many = (count, one, more = one + "s") => `${count} ${count === 1 ? one : more}`;
const moment = (seconds) => (known(seconds) ? new Date(1000 * seconds).toISOString().slice(0, 16).replace("T", " ") : "");
const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en-US") : "");

// A verdict is told by its sign and its word; color only helps.
const VERDICTS = {
  fail: { sign: "\u2717", kind: "fail" },
  inconclusive: { sign: "?", kind: "open" },
  pass: { sign: "\u2713", kind: "pass" },
  "no reference": { sign: "\u2013", kind: "open" },
  "not judged": { sign: "\u2013", kind: "open" },
  running: { sign: "\u2026", kind: "open" },
  "no success": { sign: "!", kind: "fail" },
};

function verdictOf(result) {
  if (result.status === "Running") return "running";
  return result.status === "Success" ? result.verdict || "not judged" : "no success";
}

function mark(verdict, words = verdict) {
  const { sign, kind } = VERDICTS[verdict];
  return element("span", { class: `mark ${kind}` }, `${sign} ${words}`);
}
