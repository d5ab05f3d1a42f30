"use strict";
// Runs of the chosen configurations by date: software as color and shape, a line where something changed.

function showHistory(runs) {
  const chosen = new Set(runs.map((run) => run.name));
  const shown = report.histories.map((history) => ({ ...history, moments: history.moments.filter((moment) => chosen.has(moment.run_id)) })).filter((history) => history.moments.length);
  // Step times of different configurations have no common axis: each is drawn against its own first median.
  const several = shown.length > 1;
  const values = shown.flatMap((history) => {
    const base = several ? median(history.moments.map((moment) => moment.seconds)) / 100 : 1;
    return history.moments.map(({ run_id, created, software, seconds, error, changes }) => ({
      run: run_id, configuration: history.title, key: history.key, created: 1000 * created, software, seconds, error,
      drawn: seconds / base, low: (seconds - 2 * error) / base, high: (seconds + 2 * error) / base,
      changed: changes.map((change) => change.name).join(", "),
    }));
  });
  const scales = legendScales([...new Set(values.map((value) => value.software))], "software");
  const title = several ? "step time (% of the configuration's median)" : "step time (s)";
  const times = values.map((value) => value.created);
  // Between runs that were submitted together the ticks would be fractions of a second, without the time.
  const axis = Math.max(...times) - Math.min(...times) < 60000 ? { format: "%H:%M:%S", tickCount: 2 } : {};
  const x = { field: "created", type: "temporal", title: "date (UTC)", scale: { type: "utc", padding: 24 }, axis };
  const y = { field: "drawn", type: "quantitative", title, scale: { zero: false } };
  const tips = tooltip(["run", "run", null, "nominal"], ["configuration", "configuration", null, "nominal"], ["software", "software", null, "nominal"], ["seconds", "step time (s)", ".4f"], ["error", "standard error (s)", ".4f"], ["changed", "changed since the run before", null, "nominal"]);
  const changes = several ? [] : values.filter((value) => value.changed).map((value) => ({ ...value, what: value.changed.length > 40 ? value.changed.slice(0, 38) + "\u2026" : value.changed }));
  const references = several ? [] : referencesOf(runs);
  const layer = [
    { mark: { type: "line", color: "var(--line)" }, encoding: { x, y, detail: { field: "key" } } },
    { mark: { type: "rule" }, encoding: { x, y: { ...y, field: "low" }, y2: { field: "high" }, color: { field: "software", ...scales.color } } },
    { mark: { type: "point", filled: true, size: 70 }, encoding: { x, y, color: { field: "software", ...scales.color }, shape: { field: "software", ...scales.shape }, tooltip: tips } },
  ];
  if (changes.length) layer.unshift(
    { data: { values: changes }, mark: { type: "rule", strokeDash: [2, 3], color: "var(--s4)" }, encoding: { x, tooltip: tips } },
    { data: { values: changes }, mark: { type: "text", angle: 270, align: "left", baseline: "bottom", dx: 4, dy: -3, y: "height", color: "var(--quiet)", fontSize: 10 }, encoding: { x, text: { field: "what" } } },
  );
  if (references.length) layer.push({ data: { values: references }, mark: { type: "rule", strokeDash: [5, 4] }, encoding: { y: { ...y, field: "seconds" } } });
  return draw(at("history"), values.length && { height: 240, data: { values }, layer }, values.length ? "Step time of each run by date; bars are two standard errors, dotted lines say what changed since the run before" : "No successful run.");
}

function median(values) {
  const ordered = [...values].sort((one, other) => one - other);
  return ordered[Math.floor(ordered.length / 2)];
}
