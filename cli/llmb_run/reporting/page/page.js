"use strict";

showHead();
showSections();
at("without-charts").hidden = Boolean(window.vegaEmbed);
if (known(report.campaign)) showAcceptance(report.campaign);
let measured = showFabrics();
const tuned = known(report.tuning) ? showTuning(report.tuning) : null;
const groups = showVerdicts((group) => {
  filters.choose({ title: group.title, software: "" });
  at("charts").scrollIntoView();
});
filters.setUp();
const table = runTable();
let charts = [];
const redraw = (chosen) => {
  charts = [showSteps(chosen), showHistory(chosen)];
  for (const line of at("groups").querySelectorAll("tbody tr")) line.classList.toggle("chosen", line.dataset.title === filters.title);
};
filters.listeners.push((chosen) => table.show(chosen), redraw);
at("whole-range").addEventListener("change", () => redraw(filters.runs()));
showNodes();
showDifferences();
showEvidence();
let swept = showSweeps();
showContents();
let scaled = showScaling();
// A performance engineer wants one configuration at a time, and the worst first.
filters.choose({ title: groups.length ? groups[0].title : "" });
// What is drawn for one width is drawn again for another.
let drawnFor = document.documentElement.clientWidth;
let resizing;
window.addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => {
    if (drawnFor === document.documentElement.clientWidth) return;
    drawnFor = document.documentElement.clientWidth;
    measured = showFabrics();
    swept = showSweeps();
    scaled = showScaling();
    redraw(filters.runs());
  }, 150);
});
window.addEventListener("hashchange", follow);
follow();
// A printer shows what is folded away on a screen.
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
// For whoever waits until all is drawn, as a test or a printer does.
Object.defineProperty(window, "drawn", { get: () => Promise.all([measured, tuned, scaled, swept, ...charts]).then(() => true) });
