"use strict";
// Tables whose headings are buttons sort by that column: numbers as numbers, texts as texts; a second click reverses
// the order.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = Array.from(table.tHead.rows[0].cells);
  const body = table.tBodies[0];
  const key = (row, place) => {
    const cell = row.cells[place];
    const number = cell.dataset.number;
    return number === undefined ? cell.textContent.trim() : Number(number);
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), undefined, { numeric: true });
  headings.forEach((heading, place) => {
    const button = heading.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const order = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", order === 1 ? "ascending" : "descending");
      const rows = Array.from(body.rows);
      rows.sort((a, b) => order * compare(key(a, place), key(b, place)));
      body.append(...rows);
    });
  });
}
