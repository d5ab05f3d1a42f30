"use strict";
// Tables that a click on a heading sorts. On a narrow screen a line becomes a card, and the headings say what to sort by.

// columns: {title, value(row) to sort by, cell(row) to show, kind: the cell's class; "head" names the line}
function sortedTable(table, columns, rows, { decorate = () => {} } = {}) {
  const body = element("tbody", { role: "rowgroup" });
  let state = null;
  const compare = (one, other) => {
    if (!known(one) || one === "") return known(other) && other !== "" ? 1 : 0; // what is unknown stays last
    if (!known(other) || other === "") return -1;
    const apart = typeof one === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
    return state.down ? -apart : apart;
  };
  const cellOf = (row) => ({ title, kind, cell }) => element("td", { class: kind, role: kind === "head" ? "rowheader" : "cell", "data-title": title.replace("\n", " ") }, cell(row));
  const fill = () => {
    const shown = state ? [...rows].sort((one, other) => compare(state.column.value(one), state.column.value(other))) : rows;
    body.replaceChildren(...shown.map((row) => {
      const line = element("tr", { role: "row" }, columns.map(cellOf(row)));
      decorate(line, row);
      return line;
    }));
  };
  const headings = columns.map((column) => {
    const heading = element("th", { scope: "col", role: "columnheader", class: column.kind === "number" && "number" });
    heading.append(element("button", { type: "button", onclick: () => {
      state = { column, down: state && state.column === column ? !state.down : false };
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      fill();
    } }, column.title));
    return heading;
  });
  // Said outright, because a style that makes cards of lines takes their roles from them.
  table.setAttribute("role", "table");
  table.setAttribute("aria-label", table.closest("section").querySelector("h2").textContent);
  table.replaceChildren(element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, headings)), body);
  fill();
  return { show: (wanted) => { rows = wanted; fill(); } };
}

// How a column of figures is written, by the specification that Python formats it with.
function formatted(value, spec) {
  if (!known(value)) return "";
  const digits = Number((/\.(\d+)/.exec(spec) || [])[1] || 0);
  if (spec.endsWith("%")) return spec.startsWith("+") ? signed(value, digits) : percent(value, digits);
  if (spec.endsWith("g")) return short(value);
  return spec === ".0f" ? whole(value) : fixed(value, digits);
}

// The figures that the report has for a table. ``found(row)`` holds them, ``place(row)`` is what they lead to; ``cells``
// says of single ones how they are shown.
function figures(described, found, place, cells = {}) {
  return described.map(({ key, head, unit, spec }) => column(unit ? `${head}\n${unit}` : head, "number", (row) => found(row)[key],
    (row) => (cells[key] ? cells[key](row) : figure(place(row), formatted(found(row)[key], spec)))));
}

function column(title, kind, value, cell = (row) => String(value(row) ?? "")) {
  return { title, kind, value, cell };
}
