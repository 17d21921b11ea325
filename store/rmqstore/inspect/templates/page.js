// Sorts a table by the column whose title is clicked, and hides the rows that a filter leaves out.
"use strict";

function valueOf(row, column) {
  const cell = row.cells[column];
  if (!cell.classList.contains("n")) return cell.textContent;
  const number = Number(cell.dataset.v ?? cell.textContent.replaceAll(",", ""));
  return Number.isNaN(number) ? -Infinity : number;
}

function compare(one, other) {
  if (typeof one === "number") return one === other ? 0 : one - other;
  return one.localeCompare(other, "en", {numeric: true});
}

function sort(heading) {
  const column = heading.cellIndex;
  const body = heading.closest("table").tBodies[0];
  const first = heading.classList.contains("n") ? "descending" : "ascending";
  const other = first === "ascending" ? "descending" : "ascending";
  const order = heading.getAttribute("aria-sort") === first ? other : first;
  for (const one of heading.parentNode.cells) one.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...body.rows].map(row => [valueOf(row, column), row]);
  rows.sort((one, other) => sign * compare(one[0], other[0]));
  body.append(...rows.map(([, row]) => row));
}

for (const heading of document.querySelectorAll(".sortable th"))
  heading.addEventListener("click", () => sort(heading));

for (const input of document.querySelectorAll(".filter"))
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const row of document.getElementById(input.dataset.rows).tBodies[0].rows)
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
