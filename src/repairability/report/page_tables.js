"use strict";
// Tables: sorting by their headers, and the CSV of each.
const DATA = JSON.parse(document.getElementById("data").textContent);

// The number a cell starts with ("1,024", "95 %", "61.2 ± 0.3", "+0.05"); NaN for words.
function leadingNumber(text) {
  const found = /^\s*[+\-\u2212]?(\d[\d,]*\.?\d*|\.\d+)(e[+-]?\d+)?(?=[\s%*±]|$)/i.exec(text);
  return found ? Number(found[0].replaceAll(",", "").replace("\u2212", "-")) : NaN;
}

function compareCells(a, b) {
  const [x, y] = [leadingNumber(a), leadingNumber(b)];
  if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
  return a.localeCompare(b, "en", { numeric: true });
}

function sortBy(header) {
  const table = header.closest("table");
  const direction = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", direction);
  const text = (row) => row.cells[header.cellIndex].textContent.trim();
  const sign = direction === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    if (!text(a) || !text(b)) return (text(a) ? 0 : 1) - (text(b) ? 0 : 1); // empty cells stay last
    return sign * compareCells(text(a), text(b));
  });
  table.tBodies[0].append(...rows);
}

for (const button of document.querySelectorAll("table[data-sortable] thead button"))
  button.addEventListener("click", () => sortBy(button.closest("th")));

for (const button of document.querySelectorAll("[data-csv]"))
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([DATA.csv[button.dataset.csv]], { type: "text/csv" }));
    link.download = `${button.dataset.csv}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
