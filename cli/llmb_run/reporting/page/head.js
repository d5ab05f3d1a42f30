"use strict";
// What a reader wants first: the conclusion, of what, when and by whom; and where the rest is.

function showHead() {
  const { kind, text } = report.campaign ? concluded(report.campaign) : report.conclusion;
  at("title").textContent = report.title;
  at("conclusion").append(element("span", { class: `sign ${lookOf(kind).kind}`, "aria-hidden": true }, lookOf(kind).sign), element("span", {}, text));
  at("facts").append(...report.facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
    element("dt", {}, "Report"), element("dd", {}, `${many(report.runs.length, "run")}, made ${moment(report.made)}, llmb ${report.version}. All times are UTC.`));
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
