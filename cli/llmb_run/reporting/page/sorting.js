"use strict";
// Tables that a click on a heading sorts.

// columns: {title, value(row) to sort by, cell(row) to show, kind: "number" | "long" | "short"}
function sortedTable(table, columns, rows, { decorate = () => {}, order = null } = {}) {
  const body = element("tbody");
  let state = order;
  const compare = (one, other) => {
    if (!known(one) || one === "") return known(other) && other !== "" ? 1 : 0; // what is unknown stays last
    if (!known(other) || other === "") return -1;
    const apart = typeof one === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
    return state.down ? -apart : apart;
  };
  const fill = () => {
    const shown = state ? [...rows].sort((one, other) => compare(state.column.value(one), state.column.value(other))) : rows;
    body.replaceChildren(...shown.map((row) => {
      const line = element("tr", {}, columns.map((column) => element("td", { class: column.kind }, column.cell(row))));
      decorate(line, row);
      return line;
    }));
  };
  const headings = columns.map((column) => {
    const heading = element("th", { scope: "col", class: column.kind === "number" && "number" });
    heading.append(element("button", { type: "button", onclick: () => {
      state = { column, down: state && state.column === column ? !state.down : column.kind === "number" && column.down === true };
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      fill();
    } }, column.title));
    return heading;
  });
  table.replaceChildren(element("thead", {}, element("tr", {}, headings)), body);
  fill();
  return { show: (wanted) => { rows = wanted; fill(); } };
}

function column(title, kind, value, cell = (row) => String(value(row) ?? "")) {
  return { title, kind, value, cell };
}
