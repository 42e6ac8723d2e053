"use strict";
// The page alive: charts and the switches that change them; tables that sort, and their CSV.
const DATA = JSON.parse(document.getElementById("data").textContent);
const settings = {};
const views = new Map();

function apply(place) {
  const name = place.dataset.chart, spec = DATA.charts[name], view = views.get(name);
  for (const { name: parameter } of spec.params ?? [])
    if (parameter in settings) view.signal(parameter, settings[parameter]);
  view.signal("room", place.clientWidth);
  const words = spec.usermeta?.words[settings[spec.usermeta.switch]];
  if (words) {
    view.description(words); // the label of its place
    document.getElementById(`words-${name}`).textContent = words.replaceAll(" %", "\u00a0%");
  }
  return view.resize().runAsync(); // resize: its legend may have got more rows
}

async function draw(place) {
  if (place.offsetParent === null) return; // drawn when a switch shows it
  if (!views.has(place.dataset.chart)) {
    const options = { mode: "vega-lite", actions: false, renderer: "svg", ast: true, tooltip: { disableDefaultStyle: true } };
    const { view } = await vegaEmbed(place, DATA.charts[place.dataset.chart], options);
    views.set(place.dataset.chart, view);
    for (const label of place.querySelectorAll(".role-legend-label text")) {
      label.setAttribute("tabindex", "0");
      label.setAttribute("role", "button");
    }
  }
  await apply(place);
}

let drawing = Promise.resolve(), resized;
function drawAll() {
  resized = clearTimeout(resized);
  delete document.body.dataset.drawn;
  const last = drawing = drawing.then(async () => { // one after the other, so that nothing is drawn twice
    for (const place of document.querySelectorAll("[data-chart]")) await draw(place);
    if (drawing === last && !resized) document.body.dataset.drawn = "yes"; // nothing more to draw
  });
}

function choose(name, value) {
  settings[name] = value;
  for (const block of document.querySelectorAll(`[data-when^="${name}="]`)) block.hidden = block.dataset.when !== `${name}=${value}`;
}

document.addEventListener("change", ({ target }) => { choose(target.name, target.value); drawAll(); });
addEventListener("resize", () => {
  delete document.body.dataset.drawn;
  clearTimeout(resized);
  resized = setTimeout(drawAll, 100);
});
// Enter on a legend's entry picks it or lets it go, as a click does.
document.addEventListener("keydown", (event) => {
  if (!["Enter", " "].includes(event.key) || !event.target.closest?.(".role-legend-label")) return;
  event.preventDefault();
  event.target.dispatchEvent(new MouseEvent("click", { bubbles: true }));
});
// A browser that comes back to a page remembers what was chosen.
for (const input of document.querySelectorAll("input:checked, select")) choose(input.name, input.value);
drawAll();

// The number a cell starts with ("1,024", "95 %", "61.2 ± 0.3", "+0.05"); NaN for words.
function leadingNumber(text) {
  const number = /^\s*[+\-\u2212]?(\d[\d,]*\.?\d*|\.\d+)(e[+-]?\d+)?(?=[\s%*±]|$)/i.exec(text);
  return number ? Number(number[0].replaceAll(",", "").replace("\u2212", "-")) : NaN;
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

for (const button of document.querySelectorAll("thead button"))
  button.addEventListener("click", () => sortBy(button.closest("th")));

for (const button of document.querySelectorAll("[data-csv]"))
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([DATA.csv[button.dataset.csv]], { type: "text/csv" }));
    link.download = `${button.dataset.csv}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
