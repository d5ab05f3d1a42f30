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

function column(title, kind, value, cell = (row) => String(value(row) ?? "")) {
  return { title, kind, value, cell };
}
