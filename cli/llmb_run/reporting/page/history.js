"use strict";
// Runs of the chosen configurations by date: software as color and shape, a line where something changed.

function showHistory(runs) {
  const chosen = new Set(runs.map((run) => run.name));
  const kinds = new Set(runs.map((run) => `${run.title} ${run.software}`));
  const listed = new Set(report.runs.map((run) => run.name));
  // Runs that are in no table are shown with those of their configuration, unless single runs were asked for.
  const isShown = ({ title }, { run_id, software }) => chosen.has(run_id) || (!filters.single && !listed.has(run_id) && kinds.has(`${title} ${software}`));
  const shown = report.histories.map((history) => ({ ...history, moments: history.moments.filter((moment) => isShown(history, moment)) })).filter((history) => history.moments.length);
  // Step times of different configurations have no common axis: each is drawn against its own first median.
  const several = shown.length > 1;
  const values = shown.flatMap((history) => {
    const base = several ? median(history.moments.map((moment) => moment.seconds)) / 100 : 1;
    return history.moments.map(({ run_id, started, software, seconds, error, changes }) => ({
      run: run_id, slow: slowRuns.has(run_id), configuration: history.title, key: history.key, created: 1000 * started, software, seconds, error,
      what: changes.map((change) => change.name).join(", "), drawn: seconds / base, low: (seconds - 2 * error) / base, high: (seconds + 2 * error) / base,
      changed: changes.map(({ name, before, after }) => `${name}: ${before} \u2192 ${after}`),
    }));
  });
  const scales = legendScales([...new Set(values.map((value) => value.software))], "software");
  const title = several ? "step time (% of the configuration's median)" : "step time (s)";
  const times = values.map((value) => value.created);
  const width = at("history").clientWidth;
  const x = { field: "created", type: "temporal", title: "date (UTC)", scale: { type: "utc", padding: 24 }, axis: timeAxis(Math.max(...times) - Math.min(...times), width) };
  const y = { field: "drawn", type: "quantitative", title, scale: { zero: false } };
  const tips = tooltip(["run", "run", null, "nominal"], ["configuration", "configuration", null, "nominal"], ["software", "software", null, "nominal"], ["seconds", "step time (s)", ".4f"], ["error", "standard error (s)", ".4f"], ["what", "changed since the run before", null, "nominal"]);
  const changed = several ? [] : values.filter((value) => value.changed.length).map((value, number) => ({ ...value, number: number + 1 }));
  const references = several ? [] : referencesOf(runs);
  const layer = [
    { mark: { type: "line", color: "var(--line)" }, encoding: { x, y, detail: { field: "key" } } },
    { mark: { type: "rule" }, encoding: { x, y: { ...y, field: "low" }, y2: { field: "high" }, color: { field: "software", ...scales.color } } },
    { mark: { type: "point", filled: true, size: 70 }, encoding: { x, y, color: { field: "software", ...scales.color }, shape: { field: "software", ...scales.shape }, tooltip: tips } },
  ];
  if (values.some((value) => value.slow)) layer.push({ data: { values: values.filter((value) => value.slow) }, mark: { type: "point", shape: "triangle-up", filled: true, size: 45, yOffset: -14, color: "var(--fail)" }, encoding: { x, y } });
  if (changed.length) layer.unshift(
    { data: { values: changed }, mark: { type: "rule", strokeDash: [2, 3], color: "var(--s4)" }, encoding: { x, tooltip: tips } },
    { data: { values: numbered(changed, times, width) }, mark: { type: "text", baseline: "bottom", y: -2, color: "var(--quiet)" }, encoding: { x, text: { field: "words", type: "nominal" } } },
  );
  at("changes").replaceChildren(...changed.map((value) => element("li", {}, `${moment(value.created / 1000)}, from run `, linkTo(runPlaces, value.run), " on: ", value.changed.join("; "))));
  if (references.length) layer.push({ data: { values: references }, mark: { type: "rule", strokeDash: [5, 4] }, encoding: { y: { ...y, field: "seconds" } } });
  return draw(at("history"), values.length && { height: 240, padding: { left: 5, right: 36, top: 16, bottom: 5 }, data: { values }, layer }, values.length ? "Step time of each run by date; bars are two standard errors, numbered dotted lines are where something changed, triangles ran with a slow node" : "No successful run.");
}

// Days and times as they are written elsewhere on the page, and no more of them than there is room for.
function timeAxis(span, width) {
  const [format, room] = span < 60000 ? ["%H:%M:%S", 80] : span < 2 * 86400000 ? ["%m-%d %H:%M", 100] : ["%Y-%m-%d", 100];
  // Between runs that were submitted together the ticks would be fractions of a second.
  return { format, labelOverlap: "greedy", tickCount: span < 60000 ? 2 : Math.max(2, Math.floor(width / room / 1.5)) };
}

// Numbers of changes above their lines; those too close to be read beside each other are one label: 3-5.
function numbered(changed, times, width) {
  const [from, to] = [Math.min(...times), Math.max(...times)];
  const place = (value) => ((value.created - from) / Math.max(1, to - from)) * Math.max(1, width - 120);
  const found = [];
  for (const value of changed) {
    const before = found.at(-1);
    if (before && place(value) - place(before) < 40) before.last = value.number;
    else found.push({ ...value, first: value.number, last: value.number });
  }
  return found.map((value) => ({ ...value, words: value.first === value.last ? `${value.first}` : `${value.first}\u2013${value.last}` }));
}

function median(values) {
  const ordered = [...values].sort((one, other) => one - other);
  return ordered[Math.floor(ordered.length / 2)];
}
